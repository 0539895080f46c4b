package command

import (
	"fmt"
	"io"
	"sync"

	"k8s.io/apimachinery/pkg/util/sets"
	"k8s.io/client-go/rest"

	"github.com/capnm/cluster-api-node-maintenance/cmd/kubectl-node_maintenance/internal/terminal"
)

// warningCode is the code of warnings that API servers send.
const warningCode = 299

// warnings prints the warnings of API servers, each once. Admission policies and webhooks of a workload cluster may be their authors.
type warnings struct {
	out io.Writer

	mu      sync.Mutex
	silent  bool
	printed sets.Set[string]
}

var _ rest.WarningHandler = &warnings{}

func newWarnings(out io.Writer) *warnings {
	return &warnings{out: out, printed: sets.New[string]()}
}

// HandleWarningHeader implements rest.WarningHandler.
func (w *warnings) HandleWarningHeader(code int, _, text string) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if text = terminal.Clean(text, maxError); code != warningCode || text == "" || w.silent || w.printed.Has(text) {
		return
	}
	w.printed.Insert(text)
	fmt.Fprintln(w.out, "Warning: "+text)
}

// silence ends the output: it would overwrite the live view.
func (w *warnings) silence() {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.silent = true
}
