"""`everlong bench soak`: hours of load with faults, and the slopes of what a server holds."""
