package controlplane

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"math/big"
	"net"
	"time"

	"github.com/pkg/errors"
	certutil "k8s.io/client-go/util/cert"
	"k8s.io/client-go/util/keyutil"
)

// authority is the certificate authority of one cluster. It signs all of its certificates: those of
// servers, and the client certificates of users and components.
type authority struct {
	key  *ecdsa.PrivateKey
	cert *x509.Certificate
	pem  []byte
}

// lifetime of the certificates that it signs; a control plane lives for minutes.
const lifetime = 7 * 24 * time.Hour

func newAuthority(cluster string) (*authority, error) {
	key, err := newKey()
	if err != nil {
		return nil, err
	}
	cert, err := certutil.NewSelfSignedCACert(certutil.Config{CommonName: cluster + "-ca", NotBefore: validFrom()}, key)
	if err != nil {
		return nil, errors.Wrap(err, "signing a CA certificate")
	}
	return &authority{key: key, cert: cert, pem: encodePEM("CERTIFICATE", cert.Raw)}, nil
}

// signClient issues a client certificate for a user.
func (a *authority) signClient(user string, groups []string) (certPEM, keyPEM []byte, err error) {
	template, err := certificateTemplate(pkix.Name{CommonName: user, Organization: groups})
	if err != nil {
		return nil, nil, err
	}
	template.ExtKeyUsage = []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth}
	return a.sign(template)
}

// signServer issues a serving certificate for host names and addresses.
func (a *authority) signServer(hosts []string) (certPEM, keyPEM []byte, err error) {
	template, err := certificateTemplate(pkix.Name{CommonName: "server"})
	if err != nil {
		return nil, nil, err
	}
	template.ExtKeyUsage = []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth}
	for _, host := range hosts {
		if ip := net.ParseIP(host); ip != nil {
			template.IPAddresses = append(template.IPAddresses, ip)
		} else {
			template.DNSNames = append(template.DNSNames, host)
		}
	}
	return a.sign(template)
}

func (a *authority) sign(template *x509.Certificate) (certPEM, keyPEM []byte, err error) {
	key, err := newKey()
	if err != nil {
		return nil, nil, err
	}
	template.KeyUsage = x509.KeyUsageDigitalSignature
	der, err := x509.CreateCertificate(rand.Reader, template, a.cert, key.Public(), a.key)
	if err != nil {
		return nil, nil, errors.Wrapf(err, "signing a certificate for %q", template.Subject.CommonName)
	}
	keyPEM, err = keyutil.MarshalPrivateKeyToPEM(key)
	return encodePEM("CERTIFICATE", der), keyPEM, err
}

func certificateTemplate(subject pkix.Name) (*x509.Certificate, error) {
	serial, err := rand.Int(rand.Reader, new(big.Int).Lsh(big.NewInt(1), 127))
	if err != nil {
		return nil, errors.Wrap(err, "drawing a certificate's serial number")
	}
	return &x509.Certificate{
		SerialNumber: serial,
		Subject:      subject,
		NotBefore:    validFrom(),
		NotAfter:     time.Now().Add(lifetime),
	}, nil
}

// validFrom is in the past, for clocks that are set back.
func validFrom() time.Time { return time.Now().Add(-24 * time.Hour) }

func newKey() (*ecdsa.PrivateKey, error) {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	return key, errors.Wrap(err, "generating a key")
}

func encodePublicKey(key *ecdsa.PrivateKey) ([]byte, error) {
	der, err := x509.MarshalPKIXPublicKey(key.Public())
	if err != nil {
		return nil, errors.Wrap(err, "encoding a public key")
	}
	return encodePEM("PUBLIC KEY", der), nil
}

func encodePEM(kind string, der []byte) []byte {
	return pem.EncodeToMemory(&pem.Block{Type: kind, Bytes: der})
}
