package locktest

// LeastRules are what the whole library needs for names under the prefix "app:".
var LeastRules = []string{
	"~app:*",
	"~redisson_lock_token:{app:*", "&redisson_lock__channel:{app:*",
	"~redisson_lock_token:app:*", "&redisson_lock__channel:app:*", // for names with a {tag}
	"~redisson_lock_queue:{app:*", "~redisson_lock_queue:app:*",
	"~relock_line*:{app:*", "~relock_line*::app:*", "&relock_line_grants:{app:*", "&relock_line_grants::app:*", "&relock_wanted:{app:*", "&relock_wanted::app:*",
	"+eval", "+evalsha", "+subscribe", "+unsubscribe", "+ping",
	"+hlen", "+hexists", "+hgetall", "+hset", "+hdel", "+pttl", "+pexpire",
	"+time", "+get", "+set", "+lindex", "+pubsub|numsub", "+publish",
	"+exists", "+hget", "+zadd", "+zcard", "+zrange", "+zrem", "+zrevrange", "+zscore",
}
