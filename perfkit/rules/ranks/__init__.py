"""Rules on several ranks and on the node they run on."""
