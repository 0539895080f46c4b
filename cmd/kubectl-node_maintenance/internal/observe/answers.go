package observe

import (
	"net/http"
	"sync/atomic"

	"github.com/pkg/errors"
)

// answers tells from the answers to the requests of one watch whether its cache is up to date. client-go retries a watch whose connection
// is refused, or which the API server is too busy to answer, without calling the handler of errors.
type answers struct {
	next     http.RoundTripper
	isLost   *atomic.Bool
	failed   func(error) // what the handler of errors does not learn
	restored func()
}

// RoundTrip implements http.RoundTripper.
func (a *answers) RoundTrip(request *http.Request) (*http.Response, error) {
	response, err := a.next.RoundTrip(request)
	switch {
	case err != nil && request.Context().Err() != nil: // the watch was stopped
	case err != nil:
		a.isLost.Store(true)
		a.failed(err)
	case isRefusal(response.StatusCode):
		a.isLost.Store(true)
		if response.StatusCode == http.StatusTooManyRequests {
			a.failed(errors.New("the API server answered " + response.Status))
		}
	case response.StatusCode < http.StatusMultipleChoices && a.isLost.Swap(false):
		a.restored()
	}
	return response, err
}

// isRefusal leaves out the statuses after which the client lists instead: the version is too old, or the API server cannot stream lists.
func isRefusal(status int) bool {
	return status >= http.StatusBadRequest && status != http.StatusGone && status != http.StatusUnprocessableEntity
}
