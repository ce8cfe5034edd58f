package main

import (
	"strings"
	"testing"
)

const history = `{"id":"1","client":0,"session":"s","kind":"create","content":[],"call":1,"return":2,"tries":1}
{"id":"2","client":0,"session":"s","kind":"append","word":"a","call":3,"return":null}
{"fault":"Redis killed","return":3}
{"id":"2","client":0,"session":"s","kind":"append","word":"a","answer":"x","call":3,"return":10,"tries":1}
{"id":"3","client":1,"session":"s","kind":"append","word":"b","answer":"y","call":4,"return":9,"tries":2}
{"id":"4","client":2,"session":"s","kind":"read","content":[["b","y"]],"call":5,"return":8,"tries":1}
{"id":"5","client":2,"session":"s","kind":"fork","content":[["b","y"],["a","x"]],"call":11,"return":12,"tries":1}
{"id":"6","client":2,"session":"s","kind":"delete","deleted":true,"call":13,"return":14,"tries":1}
{"id":"7","client":2,"session":"s","kind":"read","content":null,"call":15,"return":16,"tries":1}
{"id":"8","client":3,"session":"t","kind":"create","content":[["b","y"]],"call":5,"return":8,"tries":1}
{"id":"9","client":3,"session":"t","kind":"append","word":"c","call":9,"return":null,"tries":1}
{"id":"10","client":3,"session":"t","kind":"read","content":[["b","y"],["c","q"]],"call":15,"return":16,"tries":1}
`

func TestHistories(t *testing.T) {
	for name, change := range map[string]struct{ from, to string }{
		"":                                   {"", ""},
		"an acknowledged message is missing": {`[["b","y"],["a","x"]]`, `[["b","y"]]`},
		"the order changed":                  {`[["b","y"],["a","x"]]`, `[["a","x"],["b","y"]]`},
		"a message is there twice":           {`[["b","y"],["a","x"]]`, `[["b","y"],["a","x"],["a","x"]]`},
		"a deleted session came back":        {`"content":null,"call":15`, `"content":[["b","y"],["a","x"]],"call":15`},
		"an answer changed":                  {`[["b","y"],["c","q"]]`, `[["b","z"],["c","q"]]`},
		"a session is gone":                  {`"content":[["b","y"],["c","q"]]`, `"content":null`},
	} {
		found, err := check(strings.NewReader(strings.Replace(history, change.from, change.to, 1)))
		if err != nil {
			t.Fatal(err)
		}
		if (len(found.violations) == 0) != (name == "") || len(found.undecided) > 0 {
			t.Errorf("%q: %v", name, found)
		}
	}
	if _, err := check(strings.NewReader("{")); err == nil {
		t.Error("a line that is not JSON was accepted")
	}
}
