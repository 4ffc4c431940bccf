"""Reads exports of Nsight Systems and reports of Nsight Compute; `perfkit.nsight_runner` starts these tools."""
