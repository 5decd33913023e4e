package redisexec

import (
	"context"
	"errors"
	"time"

	"github.com/redis/go-redis/v9"
)

// pipeline sends the commands of all goroutines to one Redis process, on one connection, without
// waiting for answers in between: go-redis' auto-pipelining.
//
// That API is marked experimental: it may change with any minor version of go-redis. So all use of
// it is in this file, and an Executor can do without it: see Executor.Unpipelined.
type pipeline struct {
	auto  *redis.AutoPipeliner
	crowd crowd
}

// openPipeline returns a pipeline that shares the pools and has the time-outs of rdb; nil if there
// is none to be had.
func openPipeline(rdb *redis.Client) *pipeline {
	auto, err := rdb.AsyncAutoPipelineWithOptions(pipelining())
	if err != nil {
		return nil
	}
	return &pipeline{auto: auto}
}

// window is the most commands that may be unanswered.
const window = 8192

// pipelining is how commands are sent: at once while few are under way, which is what a
// hand-over needs. With 64 and more unanswered ones the writer waits a moment for others to
// come along.
func pipelining() *redis.AutoPipelineOptions {
	return &redis.AutoPipelineOptions{
		FullDuplex:       true,
		FullDuplexWindow: window, // go-redis takes the 64 from it
		// Before it gives its connection back, which it does when it is idle, too, it writes nothing until all is
		// answered. Where answers are slow that must not happen every 5 s, as go-redis has it.
		FullDuplexMaxHold: 5 * time.Minute,
		MaxFlushDelay:     100 * time.Microsecond,
	}
}

// submit has cmd sent behind those that were submitted before. callers is how many wait for answers, or are
// about to.
func (p *pipeline) submit(ctx context.Context, cmd *call, callers int64) queued {
	if callers < fewest || callers > most {
		return p.submitAlone(ctx, cmd)
	}
	return p.crowd.submit(ctx, p, cmd)
}

func (p *pipeline) submitAlone(ctx context.Context, cmd *call) queued {
	return queued{p.auto.Submit(ctx, cmd)}
}

// queued is a command that was submitted.
type queued struct{ future redis.AutoFuture }

// answer waits for the answer, or for ctx: then it is pending, and the command is sent all the same.
func (q queued) answer(ctx context.Context) answer {
	err := q.future.WaitContext(ctx)
	if ctx.Err() != nil && errors.Is(err, ctx.Err()) {
		return answer{err: err, pending: q.answer}
	}
	return answerTo(q.future.Cmd().(*call), err)
}

// close ends a pipeline, and cuts short what is under way.
func (p *pipeline) close() { _ = p.auto.Close() }

// notTaken reports whether err says that a pipeline has not taken a command, which was not sent then.
func notTaken(err error) bool {
	return errors.Is(err, redis.ErrAutoPipelineTimeout) || errors.Is(err, redis.ErrAutoPipelineQueueFull)
}
