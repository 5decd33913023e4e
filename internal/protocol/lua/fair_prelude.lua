-- Shared by the scripts of fair locks: fair.go puts it after prelude.lua in each.
--
-- KEYS of all of them
--   1  the lock
--   2  its queue: a sorted set of the fields that wait, by a number that rises with each that comes
--   3  its entries: a hash from field to what a grant needs: "end lease keep ticket mark channel"
--   4  the token counter; the release has one more key
--
-- An entry counts until `end`, by this server's clock in milliseconds: `lease` after its
-- client has last said that it waits. The lease is also that of the lock if it is granted.
-- keep is the life of the counter (ms; 0 = for ever; -1 = no token wished). A grant is told
-- on the channel of the waiter's process, by the ticket, a number that its client uses once.
--
-- Whichever script finds the lock free and live entries grants it to the first of them whose process
-- listens, so they are served in the order in which their scripts were executed. mark says of the
-- process of an entry:
--   0  it listened when it last said that it waits
--   1  it did not listen when the lock was to be granted: it is passed over, keeps its place, and gets
--      nothing until it says again that it waits
--   2  it did not listen when it last said so, as one that has only just come: it is alive, and gets
--      the lock whether it hears of it or not
-- To look comes before the grant: a count of those who heard a grant would come too late, since a
-- process that listens to a former master hears it, too.
local lock, queue, entries = KEYS[1], KEYS[2], KEYS[3]

-- Whether a foreign value is where the queue should be.
local function spoiled()
  return type(redis.pcall('zcard', queue)) == 'table' or type(redis.pcall('hlen', entries)) == 'table'
end

-- The token for an owner who wishes as keep says: 0 for none, nil if the counter holds
-- something else. To be stored when the lock is its own.
local function token_for(keep)
  if keep == '-1' then return 0 end
  return (next_token(3, 4))
end

local function store(token, keep)
  if keep ~= '-1' then store_token(3, token, keep, 4) end
end

-- Whether no process listens on channel, as the subcommand `count` of PUBSUB says; not if it cannot.
local function deaf(count, channel)
  return count ~= '' and redis.pcall('pubsub', count, channel)[2] == 0
end

-- Has field wait behind all others; if it waits already it keeps its place.
local function enqueue(field, lease, keep, ticket, count, channel)
  -- Refused, PEXPIRE must not leave a key without expiry. It is free while there is no key.
  redis.call('pexpire', queue, math.max(tonumber(lease), redis.call('pttl', queue)))
  local till = string.format('%.0f', clock() + lease)
  redis.call('hset', entries, field, table.concat({till, lease, keep, ticket, deaf(count, channel) and '2' or '0', channel}, ' '))
  if not redis.call('zscore', queue, field) then
    local last = redis.call('zrevrange', queue, '0', '0', 'withscores')[2] or 0
    redis.call('zadd', queue, last + 1, field)
  end
  lengthen(entries, lease)
  lengthen(queue, lease)
end

-- Takes field out of the queue.
local function leave(field)
  redis.call('zrem', queue, field)
  redis.call('hdel', entries, field)
end

-- Grants the lock, which no one holds but `last`, to the first live entry that is not passed over, and
-- tells its process the ticket and the token, which is 0 if none was wished or could be had. Dead
-- entries before it are dropped. The processes of the fields in `present` are known to be alive. Where one
-- entry of a process is passed over, so are those behind it: its waiters keep their order.
-- Returns the field that got the lock, if any, and how many heard it.
local function serve(publish, count, last, present)
  local now, passed, gone = nil, 0, {}
  while true do
    local field = redis.call('zrange', queue, passed, passed)[1]
    if not field then return nil end
    now = now or clock()
    local entry = redis.call('hget', entries, field) or ''
    local till, lease, keep, ticket, mark, channel = string.match(entry, '^(%d+) (%d+) (%-?%d+) (%d+) ([012]) (.*)$')
    local live = till and tonumber(till) > now
    if live and not (present and present[field])
      and (gone[channel] or mark == '1' or mark == '0' and deaf(count, channel)) then
      gone[channel] = true
      if mark == '0' then
        redis.call('zrem', queue, '') -- needs no memory, and so opens the way for HSET
        redis.call('hset', entries, field, table.concat({till, lease, keep, ticket, '1', channel}, ' '))
      end
      passed, live = passed + 1, false
    else
      leave(field)
    end
    if live then
      if take(lock, field, lease) then return nil end
      if last then redis.call('hdel', lock, last) end
      local token = token_for(keep)
      if token then store(token, keep) end
      local heard = redis.pcall(publish, channel, string.format('%s %.0f', ticket, token or 0))
      if type(heard) == 'table' then heard = -1 end
      return field, heard
    end
  end
end
