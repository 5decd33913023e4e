-- Ends the hold that the caller saw, of any owner.
--
-- KEYS  the lock key, its queue of Java's fair lock, if that is to be notified
-- ARGV  publish command, channel, then the fields that the caller saw
--
-- Replies  1 = deleted; 0 = the key does not hold exactly these fields, nothing was changed
for i = 3, #ARGV do
  if not held(KEYS[1], ARGV[i]) then return 0 end
end
if redis.call('hlen', KEYS[1]) ~= #ARGV - 2 then return 0 end
redis.call('hdel', KEYS[1], unpack(ARGV, 3))
wake(ARGV[1], ARGV[2])
wake_java(ARGV[1], ARGV[2], KEYS[2])
return 1
