"""On the path of a rerun, so that Python imports its ``sitecustomize`` in each process that the rerun starts."""
