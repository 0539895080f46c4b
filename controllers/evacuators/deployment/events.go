package deployment

// eventNotSurged on a Pod: it is evicted without making room first, and why. The events on Deployments are drain/surge's.
const eventNotSurged = "NotSurged"
