"""The table: questions that people have about a slow training, and the tool that answers each.

One entry per question, in the order in which they come up. ``also`` holds other words in which people ask it, and the
names of things they ask about; every word counts once. Commands are complete: they can be pasted.
"""

from __future__ import annotations

from typing import NamedTuple


class Answer(NamedTuple):
    """Which tool answers a question: its name, the command, what to look for in the result, and why this tool."""

    question: str
    tool: str
    command: str
    look_for: str
    why: str
    also: str


ANSWERS: tuple[Answer, ...] = (
    Answer(
        "Why is my training slow, and how does it get faster?",
        "perfkit run",
        "perfkit run train.py --epochs 3",
        "The first line of the verdict: which part of the step dominates. Below it the findings with their line, what "
        "each costs per step and what to change.",
        "It needs no edit, and names the cause before anybody opens a timeline.",
        "speed faster long epoch takes ages bottleneck optimize where start profile step time iteration seconds hours "
        "begin analyse performance training loop improve",
    ),
    Answer(
        "My GPU is idle half of the time",
        "perfkit run",
        "perfkit run train.py",
        "The device line: busy, idle, and the cause of most of the idle time (waiting for data, for launches, for the "
        "host after a sync). Then input-bound, launch-bound or sync-in-step.",
        "Utilization in nvidia-smi says that something runs, not how much, and never why nothing does.",
        "utilization low percent nvidia-smi starved underused gaps between kernels not fully used zero drops waiting "
        "usage fluctuates 30% 0% nothing busy bursts spikes fill saturate",
    ),
    Answer(
        "Is loading the data the bottleneck?",
        "perfkit run",
        "perfkit run train.py",
        "The phase `data`, the findings input-bound and cpu-preprocessing, and the lines of the loader's workers.",
        "It times the wait for each batch and samples inside the worker processes, down to the line of the dataset.",
        "dataloader loader dataset workers num_workers prefetch pin_memory persistent disk io read images decode "
        "augmentation preprocessing transform collate tokenize batch cpu input pipeline storage network file first "
        "waiting for next",
    ),
    Answer(
        "Where does my code wait for the GPU?",
        "perfkit.detect_syncs",
        "perfkit run --syncs auto train.py",
        "A line per place in which the host waits for the device (.item(), .cpu(), print, boolean masks), with counts "
        "per step; on a GPU with the time lost.",
        "It also works without a GPU, as a dry run, and is not misled by warnings that torch shows only once.",
        "sync synchronize synchronization item cpu numpy print loss nonzero cudaStreamSynchronize hidden blocking "
        "blocks host device non_blocking set_sync_debug_mode tolist launch asynchronous copy transfer",
    ),
    Answer(
        "How do I keep syncs out with a test?",
        "perfkit's pytest plugin",
        "pytest tests        # with @pytest.mark.max_syncs(0) on the test of a training step",
        "A failed test names each line that syncs. `pytest --perfkit-update-syncs` records the ones that are known.",
        "Counts do not flicker as times do, so the test holds on any machine, also without a GPU.",
        "pytest assert forbid prevent unit guarantee none marker budget syncs regress",
    ),
    Answer(
        "Which line of my Python code takes the time?",
        "perfkit run",
        "perfkit run train.py",
        "The findings python-bound, loop-over-samples and many-small-ops, each at a line, and the hottest lines of the "
        "report (`perfkit diagnose RUN --html`).",
        "It samples only in steps that are timed, by phase, and skips torch's own frames. For a program that is no "
        "training: py-spy.",
        "function python lines source code hot hotspot cprofile cpu time flame graph overhead interpreter slow method "
        "per line loop for",
    ),
    Answer(
        "It hangs, or runs already and must not be restarted: what is it doing?",
        "py-spy",
        "py-spy dump --pid PID        # or for a minute: py-spy record --native --duration 60 -o out.svg --pid PID",
        "The stacks of all threads: two dumps some seconds apart that are equal show where it stands.",
        "It reads the process from outside, without a line in it; perfkit has to be there from the start.",
        "hang hangs stuck deadlock frozen freeze attach process pid running restart without stopping production stack "
        "dump threads where progress blocked forever stopped",
    ),
    Answer(
        "Ranks hang in a collective, or NCCL times out",
        "NCCL flight recorder of PyTorch",
        "TORCH_NCCL_TRACE_BUFFER_SIZE=2000 TORCH_NCCL_DUMP_ON_TIMEOUT=1 torchrun --nproc-per-node 8 train.py",
        "The dump of each rank: the collective that some ranks have entered and one has not. `torchfrtrace` "
        "lines them up.",
        "It keeps the last collectives of each rank at next to no cost; a profiler shows what ran, not what "
        "is missing.",
        "nccl timeout watchdog collective allreduce barrier hang stuck distributed deadlock mismatch desync",
    ),
    Answer(
        "Which operators take the time in a step?",
        "torch.profiler, through perfkit",
        "perfkit run --record-shapes train.py && perfkit diagnose --all runs/NAME",
        "The tables of ops and kernels: self time, counts per step, shapes. Many thousand short ones point to "
        "launch-bound or many-small-ops.",
        "torch.profiler is the only one that links an op, its shapes, its line and its kernels; perfkit opens it for a "
        "few steps, and checks that the trace is whole.",
        "ops operator aten table sort self_cuda_time_total cuda time total layers modules attention convolution matmul "
        "backward forward expensive sum torch.profiler key_averages top",
    ),
    Answer(
        "I want to see the timeline: what runs when, on CPU and GPU",
        "Perfetto, with a window of perfkit",
        "perfkit run train.py        # then open rank-0/window-0.pt.trace.json.gz in https://ui.perfetto.dev",
        "Holes in the row of the GPU, and what the main thread does above each hole; ranges of your own in both rows.",
        "Look at it when the verdict has told where; a timeline of everything answers nothing by itself.",
        "trace view viewer visualize chrome tracing perfetto graphical overlap streams when events json open "
        "tensorboard plugin trace handler gone deprecated",
    ),
    Answer(
        "What does the whole system do: CUDA calls, driver, threads, several processes?",
        "Nsight Systems",
        "perfkit nsys -- python train.py",
        "Rows of the CUDA API, the OS runtime and NVTX above the rows of the GPU; perfkit's diagnosis of the export.",
        "It sees what torch.profiler cannot: other processes, threads that are not Python's, cuDNN, cuBLAS and NCCL, "
        "the driver. perfkit bounds it to a window, so that it neither floods the disk nor ends the training.",
        "nsight systems nsys os runtime driver api context switch scheduler c++ extension library threads cudnn cublas "
        "launch latency nsys-rep capture range qdrep interprocess multi-process",
    ),
    Answer(
        "Why is this one kernel slow?",
        "Nsight Compute",
        "perfkit ncu --kernel-name NAME --launch-count 5 -- python train.py",
        "Compute and memory throughput in % of the peak, what limits occupancy, the first stall reason, registers and "
        "spills.",
        "Only hardware counters tell why a kernel does not reach the peak. It replays each kernel some ten times: "
        "limit the launches, and know from a trace first that this kernel matters.",
        "kernel kernels ncu nsight compute occupancy registers spill shared memory bank conflicts stall warp roofline "
        "triton custom cuda code sm throughput dram l2 cache tensor cores instruction",
    ),
    Answer(
        "Did my change make it faster?",
        "perfkit compare",
        "perfkit compare runs/before runs/after",
        "Step, phases, ranges, ops and kernels before and after; whether both did the same work, and whether the "
        "difference is more than noise.",
        "Two means always differ: it says when a difference is none, and where it comes from.",
        "compare comparison before after difference two runs slower since upgrade update version regression new old "
        "commit improvement speedup noise significant pytorch branch changed",
    ),
    Answer(
        "How do I stop a slowdown in CI?",
        "perfkit compare, perfkit diagnose",
        "perfkit compare runs/main runs/branch --max-slowdown 5% --max-more syncs --max-more recompiles",
        "Exit code 1, with the broken budget named. `perfkit diagnose --fail-on sync-in-step` gates on a finding.",
        "Counts of syncs, launches, recompiles and graph breaks are the same on every machine; times need a quiet one.",
        "ci pipeline gate pull request automatic performance regression test budget fail build github actions merge "
        "threshold exit code",
    ),
    Answer(
        "How long does inference take, and which batch size is worth it?",
        "perfkit latency",
        "perfkit latency serve.py:make --batch-sizes 1,8,64",
        "p50, p90 and p99 and throughput by batch size, the last size that still pays, and a ? at what is not stable.",
        "It warms up until it is stable, waits for the device properly, and says when a number cannot be believed.",
        "latency inference serving throughput p99 percentile requests per second forward pass prediction deploy "
        "production milliseconds benchmark model batch size tail response real-time tokens",
    ),
    Answer(
        "How do I time one function or op properly?",
        "torch.utils.benchmark",
        'torch.utils.benchmark.Timer("step(x)", globals=globals()).blocked_autorange()',
        "The median and the interquartile range; it warns when that is wide.",
        "It waits for the GPU, warms up, and sets the number of threads: time.time() or timeit around a call do not.",
        "benchmark microbenchmark timeit time.time measure snippet two implementations cuda events elapsed_time "
        "correctly accurately timer op stopwatch perf_counter variants",
    ),
    Answer(
        "CUDA out of memory: what holds the memory?",
        "PyTorch memory snapshot, through perfkit",
        "perfkit run --trigger out-of-memory train.py        # rank-0/memory-oom.pickle goes to pytorch.org/memory_viz",
        "The stacks of the allocations that are alive at the peak; reserved much above allocated is fragmentation.",
        "A snapshot knows each block, counters only know the sum. It has stacks where allocations were recorded: "
        'profile(recorders=("kineto", "memory")).',
        "oom out memory allocated reserved fragmentation peak gpu vram activations full snapshot crash batch too large "
        "cuda error tried allocate usage gib consumption reduce fits",
    ),
    Answer(
        "Memory grows from step to step",
        "perfkit run",
        "perfkit run --stop-after 500 train.py",
        "The finding memory-growth: how much per step, which tensors stay alive, and the name that holds them.",
        "It compares the tensors that are alive between steps; most leaks are a loss that keeps its graph.",
        "leak leaks growing increases slowly grow ram host killed eventually after epochs memory keeps rising hours "
        "retain graph append list creep",
    ),
    Answer(
        "Which Python objects fill the host's memory?",
        "memray",
        "python -m memray run -o out.bin train.py && python -m memray flamegraph out.bin",
        "The stacks that own the memory at its high point.",
        "It follows every allocation of the process, native ones too. For tensors: perfkit run.",
        "ram host cpu memory objects dataset list dict swap oom-killer killed resident python worker copies heap rss",
    ),
    Answer(
        "torch.compile compiles again and again, or breaks graphs",
        "perfkit run, logs of torch.compile",
        'TORCH_LOGS="recompiles,graph_breaks" perfkit run train.py',
        "The findings recompiles and graph-breaks with your line; in the logs the guard that failed, which names the "
        "shape or value that changed.",
        "Recompiles hide in steps that are slow now and then; perfkit counts them per step and prices them.",
        "compile torch.compile recompile recompilation dynamo graph break fullgraph dynamic shapes guard cache limit "
        "warmup first steps slow minutes recompiles mark_dynamic",
    ),
    Answer(
        "torch.compile brings nothing: what code does it make?",
        "tlparse",
        "TORCH_TRACE=/tmp/trace python train.py && tlparse /tmp/trace",
        "Each compiled graph with its generated kernels, its compile time, and what fell back to eager.",
        "It shows what Inductor made of each graph; a profiler shows only names like triton_poi_fused_3.",
        "compile inductor generated code triton fused fusion no speedup compiled eager slower than compile time output "
        "debug why not",
    ),
    Answer(
        "Now and then a step is slow: where do the spikes come from?",
        "perfkit run with a trigger",
        "perfkit run --trigger slow-step train.py",
        "The slowest steps with their phases, recompiles and garbage collections; the window opens right after a slow "
        "step.",
        "A schedule records steps that were planned, and a spike is not.",
        "spike spikes outlier occasional jitter sometimes random hiccup every few stall sudden periodic irregular "
        "variance fluctuate unstable step times p99 garbage collection gc pause",
    ),
    Answer(
        "It runs already, with perfkit: record a few steps now",
        "perfkit trigger",
        "perfkit trigger runs/NAME",
        "A window from the next step on, diagnosed like any other.",
        "It needs no daemon and no restart: the run looks at its folder once a second.",
        "on demand trigger now running job signal touch file later mid-run window remote cluster usr2 middle again",
    ),
    Answer(
        "Watch a training live in the terminal",
        "perfkit watch",
        "perfkit watch runs/NAME",
        "Step time, phases, throughput and memory as they come, and the findings so far.",
        "It only reads the run folder, so that it cannot slow down what it shows.",
        "watch live monitor progress terminal dashboard follow realtime current throughput samples per second top htop",
    ),
    Answer(
        "One rank or node is slower than the others",
        "perfkit run under torchrun",
        "torchrun --nproc-per-node 8 -m perfkit run train.py",
        "slow-rank and imbalanced-data: which rank the others wait for, in which phase, with how much data; "
        "node-slowed where its GPU throttles.",
        "All-reduce makes all ranks look equally slow: only each rank's own work tells which one they wait for.",
        "rank ranks straggler slowest imbalance ddp fsdp multi-gpu multi-node wait others uneven worker lagging late "
        "all_reduce different machines nodes node",
    ),
    Answer(
        "More GPUs do not make it faster: is it communication (NCCL)?",
        "perfkit run under torchrun",
        "torchrun --nproc-per-node 8 -m perfkit run train.py",
        "exposed-communication: time in collectives with no compute beside it; bus bandwidth per collective.",
        "Communication that hides behind the backward costs nothing; only the exposed part is worth work.",
        "nccl kernel all-reduce allreduce communication bandwidth scaling scale poorly overlap ddp fsdp multi-gpu "
        "multiple gpus nodes infiniband nvlink distributed bucket efficiency linear collectives exposed gradient",
    ),
    Answer(
        "Is the GPU throttled, or does somebody else use it?",
        "nvidia-smi, perfkit run",
        "nvidia-smi -q -d PERFORMANCE,CLOCK,TEMPERATURE,POWER,PIDS",
        "Clocks event reasons that are active (SW Power Cap, HW Slowdown, thermal), clocks far below the maximum under "
        "load, other processes. In a run: node-slowed.",
        "The same code on a hot or shared card is slower for no reason that lies in the code.",
        "throttle throttling throttled temperature hot thermal power cap clocks clock mhz frequency fan heat other "
        "process user shared neighbour same code slower machine degraded hardware faulty boost",
    ),
    Answer(
        "How well are the GPUs of the cluster used, over days?",
        "DCGM",
        "dcgmi dmon -e 1001,1002,1003,1004,1005        # or dcgm-exporter with Prometheus",
        'SM active, tensor-core active and DRAM active: high "utilization" with SM active below 30% is a GPU that is '
        "busy with little.",
        "It samples all cards of a fleet all the time without touching the jobs; why one is low, a profiler says.",
        "cluster fleet monitoring prometheus grafana dashboard days weeks all jobs dcgm exporter metrics users admin "
        "operations average sm active accounting",
    ),
    Answer(
        "How close to the hardware's limit am I?",
        "perfkit run",
        "perfkit run train.py && perfkit diagnose --all runs/NAME",
        "Model FLOPs utilization (of the dense peak of the precision that is used), compute-bound or memory-bound, and "
        "the share of tensor-core kernels.",
        "It counts FLOPs once and takes the dense peak: sparse peaks on data sheets are twice as high.",
        "mfu flops tflops peak theoretical efficiency utilization tensor cores hardware limit roofline achieved mixed "
        "precision bf16 fp16 compute bound memory bound how good",
    ),
    Answer(
        "Name parts of my own code in the timeline",
        "perfkit.range",
        '@perfkit.range        # or: with perfkit.range("loss"): ...',
        "The range in NVTX tools, in torch.profiler's trace and in the table of ranges, with its time on the GPU.",
        "One mark serves all tools, costs 0.1 µs when nobody listens, and does not break torch.compile.",
        "nvtx annotate annotation range label mark record_function region section custom own names push pop user part "
        "code timing block named",
    ),
    Answer(
        "Profile inside Lightning, the Hugging Face Trainer or TensorBoard",
        "perfkit.integrations",
        'Trainer(callbacks=[ProfilerCallback("runs/NAME")])        # from perfkit.integrations.lightning',
        "The same verdict as of a plain loop, with steps that end where the optimizer's step does.",
        "The frameworks' own profilers cut steps elsewhere, or slow down the whole run.",
        "lightning pytorch-lightning trainer hugging face huggingface transformers accelerate callback tensorboard "
        "keras framework integrate simpleprofiler advancedprofiler",
    ),
    Answer(
        "I have a trace or a report: what does it say?",
        "perfkit diagnose",
        "perfkit diagnose FILE        # .json, .json.gz, .nsys-rep, .sqlite, .ncu-rep, ncu's .csv, or a run folder",
        "The verdict and the findings; `--html` writes a page with the timeline.",
        "It needs neither a GPU nor torch, and reads what other tools have recorded.",
        "read existing trace file json nsys-rep sqlite interpret understand somebody gave laptop offline without "
        "report meaning explain analyze exported got from colleague",
    ),
    Answer(
        "The trace is too big to open",
        "perfkit trim",
        "perfkit trim trace.json.gz --steps 4:6",
        "A short trace that Perfetto opens; `--drop python_function` removes stacks.",
        "It reads the file as a stream: a trace of gigabytes needs no gigabytes of memory.",
        "too large huge gigabytes gb size viewer crashes out of memory browser cut shorten split trace file load fails "
        "chrome hangs big smaller reduce",
    ),
    Answer(
        "The loss is NaN, or the training does not converge",
        "torch.autograd.detect_anomaly",
        "with torch.autograd.detect_anomaly(): loss.backward()        # in a few steps only: it is slow",
        "The traceback of the forward op whose gradient was the first NaN.",
        "That is a question of numbers and not of time: none of the other tools here looks at values.",
        "nan inf loss explode exploding diverge diverges accuracy wrong results converge gradient gradients overflow "
        "underflow learn learning quality",
    ),
    Answer(
        "What works on this machine?",
        "perfkit doctor",
        "perfkit doctor",
        "Versions, the GPU, NVTX, nsys and ncu, NVML, which frameworks work, and what perfkit has patched.",
        "Most reports that a profiler shows nothing come down to a missing or too old part.",
        "install installed version setup missing empty trace without nothing recorded check environment "
        "support supported works cupti driver found compatible",
    ),
)
