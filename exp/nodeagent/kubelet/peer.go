package kubelet

import (
	"bufio"
	"bytes"
	"context"
	"crypto/tls"
	"encoding/binary"
	"fmt"
	"net"
	"net/netip"
	"os"
	"strconv"
	"strings"

	"github.com/pkg/errors"
)

// sockets4 and sockets6 are the kernel's tables of the TCP sockets in the network of the agent, which is that of the node. A kubelet that
// listens on all addresses is in the second one, also for IPv4.
// https://man7.org/linux/man-pages/man5/proc_pid_net.5.html
const sockets4, sockets6 = "/proc/net/tcp", "/proc/net/tcp6"

// dialOwnUser connects over TLS to a server on this node. It does not verify the certificate. It fails unless the process that has
// accepted the connection runs as the user of the agent, which is root: while the kubelet does not run, every user can listen on its port.
func dialOwnUser(ctx context.Context, network, address string) (net.Conn, error) {
	dialer := &tls.Dialer{
		NetDialer: &net.Dialer{Timeout: timeout},
		Config:    &tls.Config{InsecureSkipVerify: true}, //nolint:gosec // see above
	}
	conn, err := dialer.DialContext(ctx, network, address)
	if err != nil {
		return nil, err
	}
	// After the handshake: a connection has no owner before a process has accepted it.
	user, err := userOf(conn.RemoteAddr().String(), conn.LocalAddr().String(), sockets4, sockets6)
	if err == nil && user != os.Geteuid() {
		err = errors.Errorf("a process of user %d has accepted the connection to %s, so it is not the kubelet, which runs as root", user, address)
	}
	if err != nil {
		_ = conn.Close()
		return nil, err
	}
	return conn, nil
}

// userOf returns the ID of the user as whom the process runs that has accepted a connection over IPv4. It looks for the connection and not
// for the socket that listens: a network plugin may redirect connections to that port to another process.
func userOf(server, client, table4, table6 string) (int, error) {
	serverAddress, err := netip.ParseAddrPort(server)
	if err != nil {
		return 0, errors.Wrap(err, "parsing the address of the kubelet")
	}
	clientAddress, err := netip.ParseAddrPort(client)
	if err != nil {
		return 0, errors.Wrap(err, "parsing the address of the agent")
	}
	for _, table := range []struct {
		file  string
		bytes int // of an address
	}{{table4, 4}, {table6, 16}} {
		owner, err := ownerIn(table.file, inTable(serverAddress, table.bytes)+" "+inTable(clientAddress, table.bytes))
		if err != nil && !os.IsNotExist(err) { // a node may have no IPv6
			return 0, errors.Wrap(err, "reading which user has accepted a connection")
		}
		if owner != "" {
			user, err := strconv.Atoi(owner)
			return user, errors.Wrap(err, "parsing the ID of the user who has accepted a connection")
		}
	}
	return 0, errors.Errorf("no process of this node has accepted the connection to %s", server)
}

// ownerIn returns the ID of the user who owns the socket with these addresses in a table, or "" if no process has such a socket.
func ownerIn(table, addresses string) (string, error) {
	file, err := os.Open(table) //nolint:gosec // a constant
	if err != nil {
		return "", err
	}
	defer func() { _ = file.Close() }()
	lines, wanted := bufio.NewScanner(file), []byte(" "+addresses+" ")
	for lines.Scan() {
		if !bytes.Contains(lines.Bytes(), wanted) {
			continue
		}
		const user, inode = 7, 9 // columns. Without an inode, no process has the socket, and the user means nothing.
		if fields := strings.Fields(lines.Text()); len(fields) > inode && fields[inode] != "0" {
			return fields[user], nil
		}
	}
	return "", lines.Err()
}

// inTable returns an address as in the kernel's tables, which have each 32 bits of an IP address as a number of this machine.
func inTable(address netip.AddrPort, size int) string {
	all := address.Addr().As16() // the last four bytes are the address in IPv4
	var text strings.Builder
	for ip := all[len(all)-size:]; len(ip) > 0; ip = ip[4:] {
		fmt.Fprintf(&text, "%08X", binary.NativeEndian.Uint32(ip))
	}
	fmt.Fprintf(&text, ":%04X", address.Port())
	return text.String()
}
