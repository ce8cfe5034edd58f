"""`everlong bench soak`: hours of load with faults, and the slopes of a server's memory, files and latency."""
