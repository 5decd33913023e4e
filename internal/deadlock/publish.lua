-- Publishes what an owner that holds a lock waits for. It needs no answer.
--
-- KEYS  the waits of the holders of the lock: a hash from field to "end wait"
-- ARGV  field of the holder, life (ms), wait
--
-- Replies  1
--
-- Of so many waits nobody reads any: holders.lua leaves out a lock with more holders.
if redis.call('hlen', KEYS[1]) >= 64 and redis.call('hexists', KEYS[1], ARGV[1]) == 0 then return 1 end
local now = redis.call('time')
now = now[1] * 1000 + math.floor(now[2] / 1000)
local all = redis.call('hgetall', KEYS[1])
for i = 1, #all, 2 do
  if tonumber(string.match(all[i + 1], '^%d+') or 0) <= now then redis.call('hdel', KEYS[1], all[i]) end
end
redis.call('hset', KEYS[1], ARGV[1], string.format('%.0f %s', now + ARGV[2], ARGV[3]))
if redis.pcall('pexpire', KEYS[1], ARGV[2]) ~= 1 then redis.call('hdel', KEYS[1], ARGV[1]) end -- no key stays without expiry
return 1
