package controlplane

import (
	"bytes"
	"encoding/json"
	"io"
	"os"

	"github.com/pkg/errors"
	auditv1 "k8s.io/apiserver/pkg/apis/audit/v1"
)

const auditLogName = "audit.log"

// AuditLog is the API server's record of requests, in the order of its responses.
// audit-policy.yaml selects the requests.
//
// Readers need not wait for it. The API server writes an event to the file, with a blocking write,
// before it ends the response. So once a client has its response, the event can be read. A watch is
// recorded when it begins.
type AuditLog struct {
	path string
}

// Mark is a position in the audit log. The zero Mark is its beginning.
type Mark struct {
	offset int64
}

// Audit returns the audit log of the API server. It survives restarts of the API server.
func (c *ControlPlane) Audit() *AuditLog {
	return &AuditLog{path: c.path("log", auditLogName)}
}

// OpenAuditLog returns the audit log that an API server writes to a file. The end-to-end tests, another module, use it.
func OpenAuditLog(path string) *AuditLog { return &AuditLog{path: path} }

// Mark returns the current end of the log. Earlier responses are before it, and later requests are
// after it.
func (a *AuditLog) Mark() (Mark, error) {
	file, err := a.open()
	if file == nil {
		return Mark{}, err
	}
	defer func() { _ = file.Close() }()
	end, err := file.Seek(0, io.SeekEnd)
	if err != nil {
		return Mark{}, errors.Wrapf(err, "finding the end of %s", a.path)
	}
	// The last line may be incomplete, so look for the last end of a line.
	const step = 64 << 10
	for end > 0 {
		begin := max(0, end-step)
		block := make([]byte, end-begin)
		if _, err := file.ReadAt(block, begin); err != nil {
			return Mark{}, errors.Wrapf(err, "reading the end of %s", a.path)
		}
		if at := bytes.LastIndexByte(block, '\n'); at >= 0 {
			return Mark{begin + int64(at) + 1}, nil
		}
		end = begin
	}
	return Mark{}, nil
}

// Since returns the events after a mark.
func (a *AuditLog) Since(mark Mark) (Events, error) {
	events, _, err := a.Next(mark)
	return events, err
}

// Next returns the events after a mark, and the mark after them, from which to continue.
func (a *AuditLog) Next(mark Mark) (Events, Mark, error) {
	file, err := a.open()
	if file == nil {
		return nil, mark, err
	}
	defer func() { _ = file.Close() }()
	if _, err := file.Seek(mark.offset, io.SeekStart); err != nil {
		return nil, mark, errors.Wrapf(err, "seeking in %s", a.path)
	}
	content, err := io.ReadAll(file)
	if err != nil {
		return nil, mark, errors.Wrapf(err, "reading %s", a.path)
	}
	content = content[:bytes.LastIndexByte(content, '\n')+1]
	var events Events
	for line := range bytes.Lines(content) {
		var event auditv1.Event
		if err := json.Unmarshal(afterTornEvent(line), &event); err != nil {
			return nil, mark, errors.Wrapf(err, "parsing a line of %s", a.path)
		}
		events = append(events, newEvent(&event))
	}
	return events, Mark{mark.offset + int64(len(content))}, nil
}

// afterTornEvent returns a line without the beginning of an event that a killed API server left in it: the next server continues the line.
// The body of a request may contain an object of kind Event of another API group.
func afterTornEvent(line []byte) []byte {
	if last := bytes.LastIndex(line, []byte(`{"kind":"Event","apiVersion":"audit.k8s.io/v1",`)); last > 0 && !json.Valid(line) {
		return line[last:]
	}
	return line
}

// open returns nil if there is no file because nothing has been requested yet.
func (a *AuditLog) open() (*os.File, error) {
	file, err := os.Open(a.path)
	if errors.Is(err, os.ErrNotExist) {
		return nil, nil
	}
	return file, errors.Wrap(err, "opening the audit log")
}
