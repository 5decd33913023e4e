-- Sets hold counts on the way down; a count of 0 gives the lock back and wakes
-- its waiters.
--
-- KEYS  n lock keys
-- ARGV  field, publish command, then for each key its count and its channel
--
-- Replies
--   1   done
--   2   done, but a wake-up was refused by the server
--   0   not ours: a key did not hold field; the other keys were released all the same
local field, publish = ARGV[1], ARGV[2]
local reply, freed = 1, {}
for i = 1, #KEYS do
  local count, channel = tonumber(ARGV[1 + 2 * i]), ARGV[2 + 2 * i]
  if not held(KEYS[i], field) then
    reply = 0
  elseif count > 0 then
    redis.call('hdel', KEYS[i], '') -- needs no memory, and so opens the way for HSET
    redis.call('hset', KEYS[i], field, count)
  else
    redis.call('hdel', KEYS[i], field)
    freed[#freed + 1] = channel
  end
end
for _, channel in ipairs(freed) do
  if not wake(publish, channel) and reply == 1 then reply = 2 end
end
return reply
