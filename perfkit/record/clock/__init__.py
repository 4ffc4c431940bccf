"""When a step begins and ends, and which phase its time belongs to, on the host and on the device."""
