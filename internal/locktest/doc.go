// Package locktest is what the tests inside package relock share with those in folder tests. It does not
// import relock, which imports it in its tests: it knows a lock by its methods, and what a client keeps by
// package inside.
package locktest
