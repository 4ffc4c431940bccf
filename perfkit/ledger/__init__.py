"""Where the step goes: each nanosecond has one owner, and findings claim what they account for.

The step is the device's period if a device did most of the work, else the step of the thread that trains.
  computing          ops and kernels, without what starting each op costs (op overhead)
  copies             between host and device, and what prepares them
  communication      the transfer between ranks that no computing hides; waiting for ranks: for those that come later
  idle               the device has nothing to do, by cause: sync, python, data, launch latency, ...
  data               the loop waits for its next batch, or makes it
  python, waiting    code of the program outside of ops; sleep, locks, files, the network
  validation, logging, checkpoint, callbacks, collection (of garbage)
  other programs     had the core while the thread could have run
  unrecorded         the recording does not show what happened

The limit of a row is what its FLOPs, at the rate of a large matrix product, or its bytes, at the memory's bandwidth,
take on this machine, whichever is longer; measured on a CPU (perfkit doctor), from the data sheet for a GPU. It is
known where the shapes of ops are. That of op overhead, and of Python around ops, is the time that so many calls take.

Each nanosecond is one of four; no time is claimed by two findings:
  claimed            a finding accounts for it
  at the limit       not claimed, and at least half as fast as its limit
  overhead of ops    not claimed, and at most twice what the calls cost
  unexplained        all others: far from the limit, or the limit is not known
Healthy: half of the step is at the limit, less than a quarter is overhead, less than a quarter unexplained, and no
problem is of unknown cost.
"""
