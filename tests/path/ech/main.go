// Server and client of TLS with an encrypted ClientHello (RFC 9849): the outer hello names the public name, the inner one,
// which is encrypted, names the real one.
//
//	ech serve ADDRESS PUBLIC INNER   prints a line: certificate, stale and current configurations, each in base64
//	ech dial ADDRESS INNER CERTIFICATE CONFIGURATIONS
package main

import (
	"bufio"
	"crypto/ecdh"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"encoding/base64"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"math/big"
	"net"
	"os"
	"time"
)

// Time limit of a hello, an answer and a handshake.
const patience = 20 * time.Second

func main() {
	arguments := os.Args[1:]
	var err error
	switch {
	case len(arguments) == 4 && arguments[0] == "serve":
		err = serve(arguments[1], arguments[2], arguments[3])
	case len(arguments) == 5 && arguments[0] == "dial":
		err = dial(arguments[1], arguments[2], arguments[3], arguments[4])
	default:
		err = errors.New("usage: ech serve ADDRESS PUBLIC INNER | ech dial ADDRESS INNER CERTIFICATE CONFIGURATIONS")
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, "ech:", err)
		os.Exit(1)
	}
}

// Answers each connection with its server name and whether the hello was encrypted, until standard input ends.
func serve(address, public, inner string) error {
	certificate, err := selfSigned(public, inner)
	if err != nil {
		return err
	}
	_, stale, err := newKey(1, public)
	if err != nil {
		return err
	}
	key, current, err := newKey(2, public)
	if err != nil {
		return err
	}
	config := &tls.Config{
		Certificates:             []tls.Certificate{certificate},
		MinVersion:               tls.VersionTLS13,
		EncryptedClientHelloKeys: []tls.EncryptedClientHelloKey{{Config: current, PrivateKey: key, SendAsRetry: true}},
	}
	listener, err := tls.Listen("tcp", address, config)
	if err != nil {
		return err
	}
	encode := base64.StdEncoding.EncodeToString
	fmt.Println(encode(certificate.Certificate[0]), encode(list(stale)), encode(list(current)))
	go func() {
		for {
			conn, err := listener.Accept()
			if err != nil {
				return
			}
			go answer(conn.(*tls.Conn))
		}
	}()
	_, err = io.Copy(io.Discard, os.Stdin)
	return err
}

func answer(conn *tls.Conn) {
	defer conn.Close()
	conn.SetDeadline(time.Now().Add(patience))
	if conn.Handshake() != nil {
		// A client with a stale configuration ends up here, too: it connects again with the current one.
		return
	}
	state := conn.ConnectionState()
	fmt.Fprintf(conn, "%s %t\n", state.ServerName, state.ECHAccepted)
}

// Prints the server's answer, or "retry" and the configurations to connect again with.
func dial(address, inner, certificate, configurations string) error {
	decode := base64.StdEncoding.DecodeString
	der, err := decode(certificate)
	if err != nil {
		return err
	}
	root, err := x509.ParseCertificate(der)
	if err != nil {
		return err
	}
	roots := x509.NewCertPool()
	roots.AddCert(root)
	list, err := decode(configurations)
	if err != nil {
		return err
	}
	config := &tls.Config{ServerName: inner, RootCAs: roots, EncryptedClientHelloConfigList: list}
	conn, err := tls.DialWithDialer(&net.Dialer{Timeout: patience}, "tcp", address, config)
	var rejected *tls.ECHRejectionError
	if errors.As(err, &rejected) && len(rejected.RetryConfigList) > 0 {
		fmt.Println("retry", base64.StdEncoding.EncodeToString(rejected.RetryConfigList))
		return nil
	}
	if err != nil {
		return err
	}
	defer conn.Close()
	conn.SetDeadline(time.Now().Add(patience))
	line, err := bufio.NewReader(conn).ReadString('\n')
	if err != nil {
		return err
	}
	fmt.Print(line)
	return nil
}

// A key and its ECHConfig (RFC 9849 section 4): X25519, HKDF-SHA256, AES-128-GCM.
func newKey(id uint8, public string) (private, config []byte, err error) {
	key, err := ecdh.X25519().GenerateKey(rand.Reader)
	if err != nil {
		return nil, nil, err
	}
	contents := []byte{id, 0x00, 0x20}
	contents = appendSized(contents, key.PublicKey().Bytes())
	contents = appendSized(contents, []byte{0x00, 0x01, 0x00, 0x01})
	contents = append(contents, 0, uint8(len(public)))
	contents = append(contents, public...)
	contents = appendSized(contents, nil)
	return key.Bytes(), appendSized([]byte{0xfe, 0x0d}, contents), nil
}

// An ECHConfigList of one.
func list(config []byte) []byte {
	return appendSized(nil, config)
}

func appendSized(to, bytes []byte) []byte {
	return append(binary.BigEndian.AppendUint16(to, uint16(len(bytes))), bytes...)
}

func selfSigned(names ...string) (tls.Certificate, error) {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return tls.Certificate{}, err
	}
	template := &x509.Certificate{
		SerialNumber:          big.NewInt(1),
		DNSNames:              names,
		NotBefore:             time.Now().Add(-time.Hour),
		NotAfter:              time.Now().Add(24 * time.Hour),
		IsCA:                  true,
		BasicConstraintsValid: true,
		KeyUsage:              x509.KeyUsageDigitalSignature | x509.KeyUsageCertSign,
		ExtKeyUsage:           []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth},
	}
	der, err := x509.CreateCertificate(rand.Reader, template, template, &key.PublicKey, key)
	if err != nil {
		return tls.Certificate{}, err
	}
	return tls.Certificate{Certificate: [][]byte{der}, PrivateKey: key}, nil
}
