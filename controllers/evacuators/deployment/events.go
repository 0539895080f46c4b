package deployment

// eventNotSurged on a Pod means that it is evicted without the requested surge. The message says why.
const eventNotSurged = "NotSurged"
