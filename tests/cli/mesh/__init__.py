"""The mesh on one machine: started, watched, stopped, killed."""
