-- Replaces a hold of one side of a read-write lock by a min-hold placeholder, a field that no hold has.
--
-- ARGV  prefix, from field, to field, to field of a reader, how long (ms), publish command, channel
--
-- Replies
--   receivers        done; the message reached so many processes, -1 if the server refused to count
--   {0, 0}           not ours: the lock held neither
--
-- If a writer also reads, or still has a placeholder as a reader, it gets a reader's placeholder: others may read, and no
-- one may write. Waiters ask again, and the reply contains the rest of the min hold. Sent again, it writes what it finds:
-- see lengthen.
local from, to, reader, rest, publish, channel = ARGV[2], ARGV[3], ARGV[4], ARGV[5], ARGV[6], ARGV[7]
local mode = held(lock, from) and redis.call('hget', lock, 'mode')
if mode ~= 'read' and mode ~= 'write' then
  local kept = held(lock, to) and to or held(lock, reader) and reader
  if kept then
    redis.call('hdel', lock, '') -- as below
    if recount(lock, kept, '1') then return 0 end
  end
  return {0, 0}
end
local had = writes(from) and 0 or levels_of(from)
left(from, had) -- or, while the slot moves, an error
local stays, other, longest = mode == 'write' and not writes(from)
if not stays then other, longest = survey({[from] = had}, few) end

redis.call('hdel', lock, '') -- needs no memory, and so opens the way for the others
if writes(from) and not other then
  redis.call('hset', lock, to, '1')
  redis.call('hdel', lock, from)
  redis.call('pexpire', lock, rest)
  return wake_all(publish, channel)
end
redis.call('set', timeout(reader, 1), '1', 'px', rest)
redis.call('hset', lock, 'mode', stays and 'write' or 'read', reader, '1')
untime(from, 1, had)
redis.call('hdel', lock, from)
if longest then
  redis.call('pexpire', lock, math.max(longest, tonumber(rest)))
else
  lengthen(lock, rest)
end
return wake_all(publish, channel)
