package nodeagent

import (
	"bufio"
	"bytes"
	"encoding/binary"
	"net"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"

	"github.com/godbus/dbus/v5"
	. "github.com/onsi/gomega"

	"github.com/capnm/cluster-api-node-maintenance/exp/nodeagent/logind"
)

// hangs is the answer to a request that is never answered.
type hangs struct{}

// refused is the answer to a request that is refused, with the name of the error.
type refused string

// loginOwner is the unique name of logind on the bus.
const loginOwner = ":1.2"

// systemBus answers the requests of a Keeper. Where the answer is nil, the service is unknown.
type systemBus struct {
	mu sync.Mutex
	// answers are the results of methods, and the values of properties, or functions that return them.
	answers map[string]any
	called  map[string]int
	conn    net.Conn
}

// calls returns how often a method was called.
func (b *systemBus) calls(method string) int {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.called[method]
}

// keeperOn returns a Keeper that runs on the bus.
func keeperOn(t *testing.T, bus *systemBus) *logind.Keeper {
	t.Helper()
	keeper := busKeeper(t, bus)
	go keeper.Run(t.Context())
	return keeper
}

// busKeeper returns a Keeper that uses the bus.
func busKeeper(t *testing.T, bus *systemBus) *logind.Keeper {
	t.Helper()
	g := NewWithT(t)
	dir, err := os.MkdirTemp("", "bus") //nolint:usetesting // the name of a test may be too long, or contain a comma
	g.Expect(err).NotTo(HaveOccurred())
	t.Cleanup(func() { _ = os.RemoveAll(dir) })
	socket := filepath.Join(dir, "bus")
	listener, err := net.Listen("unix", socket)
	g.Expect(err).NotTo(HaveOccurred())
	t.Cleanup(func() { _ = listener.Close() })
	go func() {
		for {
			conn, err := listener.Accept()
			if err != nil {
				return
			}
			go bus.serve(conn)
		}
	}()
	bus.called = map[string]int{}
	return &logind.Keeper{Socket: socket}
}

func (b *systemBus) set(name string, answer any) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.answers[name] = answer
}

// signal sends a signal of a client of the bus.
func (b *systemBus) signal(client string, path dbus.ObjectPath, source, member string, body ...any) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.send(dbus.TypeSignal, map[dbus.HeaderField]dbus.Variant{
		dbus.FieldSender: dbus.MakeVariant(client), dbus.FieldPath: dbus.MakeVariant(path),
		dbus.FieldInterface: dbus.MakeVariant(source), dbus.FieldMember: dbus.MakeVariant(member),
	}, body...)
}

// prepare begins or cancels a shutdown.
func (b *systemBus) prepare(preparing bool) {
	b.set("PreparingForShutdown", preparing)
	b.signal(loginOwner, "/org/freedesktop/login1", "org.freedesktop.login1.Manager", "PrepareForShutdown", preparing)
}

// lock returns the answer with which logind grants a lock: any file descriptor that the Keeper can close.
func lock(t *testing.T) dbus.UnixFDIndex {
	t.Helper()
	fd, err := syscall.Dup(0)
	NewWithT(t).Expect(err).NotTo(HaveOccurred())
	return dbus.UnixFDIndex(fd)
}

func (b *systemBus) serve(conn net.Conn) {
	in := bufio.NewReader(conn)
	for {
		line, err := in.ReadString('\n')
		if err != nil {
			return
		}
		switch command := strings.TrimSpace(strings.TrimPrefix(line, "\x00")); {
		case command == "AUTH":
			_, _ = conn.Write([]byte("REJECTED EXTERNAL\r\n"))
		case strings.HasPrefix(command, "AUTH "):
			_, _ = conn.Write([]byte("OK 0123\r\n"))
		case command == "NEGOTIATE_UNIX_FD":
			_, _ = conn.Write([]byte("ERROR\r\n"))
		case command == "BEGIN":
			b.mu.Lock()
			b.conn = conn
			b.mu.Unlock()
			for b.answer(in) {
			}
			return
		}
	}
}

func (b *systemBus) answer(in *bufio.Reader) bool {
	request, err := dbus.DecodeMessage(in)
	if err != nil {
		return false
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	name, _ := request.Headers[dbus.FieldMember].Value().(string)
	isProperty := name == "Get"
	if isProperty {
		name, _ = request.Body[1].(string)
	}
	answer := b.answers[name]
	if determine, ok := answer.(func() any); ok {
		answer = determine()
	}
	if answer == nil {
		answer = refused("org.freedesktop.DBus.Error.ServiceUnknown")
	}
	errorName, isRefused := answer.(refused)
	b.called[name]++
	headers := map[dbus.HeaderField]dbus.Variant{dbus.FieldReplySerial: dbus.MakeVariant(request.Serial())}
	switch {
	case name == "Hello":
		b.send(dbus.TypeMethodReply, headers, ":1.1")
	case name == "GetNameOwner" && b.answers[name] == nil:
		b.send(dbus.TypeMethodReply, headers, loginOwner)
	case name == "AddMatch":
		b.send(dbus.TypeMethodReply, headers)
	case answer == hangs{}:
	case isRefused:
		headers[dbus.FieldErrorName] = dbus.MakeVariant(string(errorName))
		b.send(dbus.TypeError, headers)
	case isProperty:
		b.send(dbus.TypeMethodReply, headers, dbus.MakeVariant(answer))
	default:
		b.send(dbus.TypeMethodReply, headers, answer)
	}
	return true
}

func (b *systemBus) send(kind dbus.Type, headers map[dbus.HeaderField]dbus.Variant, body ...any) {
	if len(body) > 0 {
		headers[dbus.FieldSignature] = dbus.MakeVariant(dbus.SignatureOf(body...))
	}
	var encoded bytes.Buffer
	message := &dbus.Message{Type: kind, Headers: headers, Body: body}
	if err := message.EncodeTo(&encoded, binary.LittleEndian); err == nil {
		_, _ = b.conn.Write(encoded.Bytes())
	}
}
