// Command ferretdb is the MongoDB-compatible server of the tests: FerretDB over SQLite, one change at a time.
//
// FerretDB 1.x looks for what an update matches and writes it in two steps, so that of two compare-and-sets that race both may
// match; it also gives a unique index that an update breaks no error number. A MongoDB server does neither. So clients do not talk to
// FerretDB itself but to this listener, which passes on whatever may change something one by one, and numbers that error. Questions
// pass beside it: SQLite answers each from one state, and that has all that was acknowledged before. What makes FerretDB use its
// indexes is in `indexed`.
//
// It prints the address it listens on once it serves, and ends when its standard input does.
package main

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"flag"
	"fmt"
	"io"
	"log"
	"log/slog"
	"net"
	"os"
	"path/filepath"
	"sync"
	"time"

	"github.com/FerretDB/FerretDB/ferretdb"
	"go.mongodb.org/mongo-driver/bson"
)

const (
	headerBytes      = 16
	maxMessageBytes  = 48_000_000
	messageOpcode    = 2013
	sectionAt        = headerBytes + 4 + 1 // after the flags, and the kind of the first section
	internalError    = 1
	duplicateKey     = 11000
	brokenUniqueness = "UNIQUE constraint failed"
)

// questions are the commands that change nothing.
var questions = map[string]bool{
	"aggregate": true, "count": true, "find": true, "getMore": true, "hello": true, "isMaster": true, "ismaster": true,
	"killCursors": true, "listCollections": true, "listIndexes": true, "ping": true,
}

func main() {
	listen := flag.String("listen", "127.0.0.1:0", "`host:port` to listen on; port 0 picks a free one")
	data := flag.String("data", "", "existing `folder` for the databases and the inner socket")
	flag.Parse()
	if *data == "" {
		log.Fatal("ferretdb: -data is needed")
	}
	if err := serve(*listen, *data); err != nil {
		log.Fatalf("ferretdb: %v", err)
	}
}

func serve(listen, data string) error {
	inner := filepath.Join(data, "inner.sock")
	if err := os.Remove(inner); err != nil && !errors.Is(err, os.ErrNotExist) { // left by one that was killed
		return err
	}
	server, err := ferretdb.New(&ferretdb.Config{
		Listener:  ferretdb.ListenerConfig{Unix: inner},
		Logger:    slog.New(slog.NewTextHandler(os.Stderr, &slog.HandlerOptions{Level: slog.LevelError})),
		Handler:   "sqlite",
		SQLiteURL: "file:" + data + "/",
	})
	if err != nil {
		return err
	}
	ctx, stop := context.WithCancel(context.Background())
	defer stop()
	go func() {
		if err := server.Run(ctx); err != nil {
			log.Fatalf("ferretdb: %v", err)
		}
	}()
	listener, err := net.Listen("tcp", listen)
	if err != nil {
		return err
	}
	go func() {
		_, _ = io.Copy(io.Discard, os.Stdin)
		os.Exit(0)
	}()
	fmt.Println(listener.Addr())
	var turn sync.Mutex
	for {
		client, err := listener.Accept()
		if err != nil {
			return err
		}
		go pass(client, inner, &turn)
	}
}

// pass carries one client's messages to FerretDB and the answers back, until either side closes.
func pass(client net.Conn, inner string, turn *sync.Mutex) {
	defer client.Close()
	server, err := net.DialTimeout("unix", inner, 5*time.Second)
	if err != nil {
		log.Printf("ferretdb: %v", err)
		return
	}
	defer server.Close()
	for {
		request, err := readMessage(client)
		if err != nil {
			return
		}
		answer, err := ask(server, request, turn)
		if err != nil {
			return
		}
		if _, err = client.Write(numbered(answer)); err != nil {
			return
		}
	}
}

func ask(server net.Conn, request []byte, turn *sync.Mutex) ([]byte, error) {
	if !questions[command(request)] {
		turn.Lock()
		defer turn.Unlock()
	}
	if _, err := server.Write(request); err != nil {
		return nil, err
	}
	return readMessage(server)
}

// command is the name of what is asked: the first field of the first section. Empty if that is none.
func command(request []byte) string {
	if binary.LittleEndian.Uint32(request[12:]) != messageOpcode || len(request) <= sectionAt || request[sectionAt-1] != 0 {
		return ""
	}
	first, err := bson.Raw(request[sectionAt:]).IndexErr(0)
	if err != nil {
		return ""
	}
	return first.Key()
}

func readMessage(from io.Reader) ([]byte, error) {
	header := make([]byte, headerBytes)
	if _, err := io.ReadFull(from, header); err != nil {
		return nil, err
	}
	size := binary.LittleEndian.Uint32(header)
	if size < headerBytes || size > maxMessageBytes {
		return nil, fmt.Errorf("a message of %d bytes", size)
	}
	message := append(header, make([]byte, size-headerBytes)...)
	_, err := io.ReadFull(from, message[headerBytes:])
	return message, err
}

// numbered gives the refusal of what would break a unique index the number that MongoDB gives it.
func numbered(answer []byte) []byte {
	if binary.LittleEndian.Uint32(answer[12:]) != messageOpcode || !bytes.Contains(answer, []byte(brokenUniqueness)) {
		return answer
	}
	var reply bson.D
	if err := bson.Unmarshal(answer[sectionAt:], &reply); err != nil {
		return answer
	}
	if fields := reply.Map(); fields["ok"] != 0.0 || fields["code"] != int32(internalError) {
		return answer
	}
	document, err := bson.Marshal(bson.D{
		{Key: "ok", Value: 0.0},
		{Key: "errmsg", Value: "E11000 duplicate key error"},
		{Key: "code", Value: int32(duplicateKey)},
		{Key: "codeName", Value: "DuplicateKey"},
	})
	if err != nil {
		return answer
	}
	changed := append(bytes.Clone(answer[:sectionAt]), document...)
	binary.LittleEndian.PutUint32(changed, uint32(len(changed)))
	return changed
}
