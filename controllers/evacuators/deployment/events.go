package deployment

// eventNotSurged is the reason of the event on a Pod that is evicted without a surge. The message tells why. The reasons of the events
// on Deployments are in drain/surge.
const eventNotSurged = "NotSurged"
