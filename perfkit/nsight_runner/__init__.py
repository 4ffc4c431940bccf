"""Runs a training under nsys or ncu: builds the command, starts it, and diagnoses the report.

`nsys_options` and `ncu_options` declare the options of the tools, `installed_tools` finds the tools, `target_program`
decides what they start, `recording_session` runs the command, `report_files` finds the reports, and `report_diagnosis`
diagnoses them. Reading the reports themselves is in `perfkit.trace.nsight`.
"""
