"""Many ranks: each becomes less than 100 kB of columns, on any executor, and the columns are read together."""
