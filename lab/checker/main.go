// Checks a history of `everlong bench history` with porcupine (https://github.com/anishathalye/porcupine): whether the operations
// of each session can be put in an order that respects their times and that a session without concurrency could have.
package main

import (
	"bufio"
	"encoding/json"
	"fmt"
	"io"
	"math"
	"os"
	"strings"
	"time"

	"github.com/anishathalye/porcupine"
)

type operation struct {
	ID      string      `json:"id"`
	Fault   string      `json:"fault"`
	Client  int         `json:"client"`
	Session string      `json:"session"`
	Kind    string      `json:"kind"`
	Word    string      `json:"word"`
	Answer  *string     `json:"answer"`
	Content *[][]string `json:"content"`
	Deleted bool        `json:"deleted"`
	Tries   int         `json:"tries"`
	Call    int64       `json:"call"`
	Return  *int64      `json:"return"`
}

// A session: absent, deleted, or its questions with their answers. Strings, so that states can be compared.
const (
	absent  = "absent"
	deleted = "deleted"
	unknown = "?"
)

func state(content [][]string) string {
	pairs := make([]string, len(content))
	for index, pair := range content {
		pairs[index] = pair[0] + "\x1f" + pair[1]
	}
	return "\x1e" + strings.Join(pairs, "\x1e")
}

// Whether a client that saw `seen` can have seen the state: an answer that no client got may be any.
func matches(current, seen string) bool {
	ours, theirs := strings.Split(current, "\x1e"), strings.Split(seen, "\x1e")
	if len(ours) != len(theirs) {
		return false
	}
	for index := range ours {
		prefix := strings.TrimSuffix(ours[index], unknown)
		if ours[index] != theirs[index] && !(prefix != ours[index] && strings.HasPrefix(theirs[index], prefix)) {
			return false
		}
	}
	return true
}

func appended(current, word, answer string) string {
	separator := "\x1e"
	if current == "\x1e" {
		separator = ""
	}
	return current + separator + word + "\x1f" + answer
}

func step(before, in, _ interface{}) (bool, interface{}) {
	current, op := before.(string), in.(operation)
	exists := current != absent && current != deleted
	switch op.Kind {
	case "create":
		return current == absent, state(*op.Content)
	case "read", "fork":
		if op.Return == nil {
			return true, current
		}
		if op.Content == nil {
			return current == deleted, current
		}
		return exists && matches(current, state(*op.Content)), current
	case "append":
		if op.Answer != nil {
			return exists, appended(current, op.Word, *op.Answer)
		}
		// Not acknowledged: an earlier try may have taken effect, before the session was deleted or at any time.
		if exists && (op.Return == nil || op.Tries > 1) {
			return true, appended(current, op.Word, unknown)
		}
		return current == deleted, current
	case "delete":
		if op.Return == nil || (op.Tries > 1 && !op.Deleted) {
			return current != absent, deleted
		}
		if op.Deleted {
			return exists || (op.Tries > 1 && current == deleted), deleted
		}
		return current == deleted, deleted
	}
	panic("unknown kind " + op.Kind)
}

// What a check found: operations, sessions, and those that are not linearizable or could not be decided in a minute.
type result struct {
	operations, sessions  int
	violations, undecided []string
}

func check(history io.Reader) (result, error) {
	sessions, count, lines := map[string]map[string]operation{}, 0, 0
	scanner := bufio.NewScanner(history)
	scanner.Buffer(nil, 64<<20)
	for scanner.Scan() {
		lines++
		var op operation
		if err := json.Unmarshal(scanner.Bytes(), &op); err != nil {
			return result{}, fmt.Errorf("line %d: %w", lines, err)
		}
		if op.Fault != "" {
			continue
		}
		if sessions[op.Session] == nil {
			sessions[op.Session] = map[string]operation{}
		}
		// The second line of an operation has its result.
		if _, begun := sessions[op.Session][op.ID]; !begun {
			count++
		}
		sessions[op.Session][op.ID] = op
	}
	found := result{operations: count, sessions: len(sessions)}
	model := porcupine.Model{Init: func() interface{} { return absent }, Step: step}
	for session, operations := range sessions {
		var history []porcupine.Operation
		for _, op := range operations {
			end := int64(math.MaxInt64)
			if op.Return != nil {
				end = *op.Return
			}
			history = append(history, porcupine.Operation{ClientId: op.Client, Input: op, Call: op.Call, Return: end})
		}
		switch porcupine.CheckOperationsTimeout(model, history, time.Minute) {
		case porcupine.Illegal:
			found.violations = append(found.violations, session)
		case porcupine.Unknown:
			found.undecided = append(found.undecided, session)
		}
	}
	return found, scanner.Err()
}

func main() {
	if len(os.Args) != 2 {
		fmt.Fprintln(os.Stderr, "usage: go run . HISTORY")
		os.Exit(2)
	}
	file, err := os.Open(os.Args[1])
	if err == nil {
		var found result
		if found, err = check(file); err == nil {
			fmt.Printf("%d operations on %d sessions: %d not linearizable %v, %d undecided %v\n", found.operations, found.sessions,
				len(found.violations), found.violations, len(found.undecided), found.undecided)
			if len(found.violations)+len(found.undecided) > 0 {
				os.Exit(1)
			}
			return
		}
	}
	fmt.Fprintln(os.Stderr, err)
	os.Exit(2)
}
