-- Shared by the scripts for the line: lined.go puts it after prelude.lua in each.
--
-- KEYS of each script. If its header says so, only the first, or the first two
--   1  the lock
--   2  its token counter
--   3  its line: a sorted set of the fields that wait, by a number that rises with each new entry
--   4  its entries: a hash from field to the parts of an entry: "end lease keep ticket mark channel"
--   5  the queue of Java's fair lock
--
-- An entry counts until `end`, by this server's clock in milliseconds: `lease` after the last request of its
-- client for it. A granted lock has the same lease.
-- keep is the life of the counter (ms; 0 = forever; -1 = no token wanted). A grant is published
-- on the channel of the waiter's process, with the ticket, a number that its client uses once.
--
-- Whichever script finds the lock free and live entries grants it to the first entry whose process
-- is subscribed, so entries are served in the order in which their scripts were executed. mark is the state of the
-- process of an entry:
--   0  it was subscribed at its last request
--   2  it was not subscribed at its last request, because it is new, or has lost its connection:
--      it is alive, and gets the lock whether the message reaches it or not
-- Subscribers are counted before the grant. To count the receivers of a grant would be too late, because a
-- process that is subscribed on a former master receives it, too.
--
-- A skipped entry leaves the queue, so that no later script examines it. It is set aside in the entries, as "aside place
-- end lease keep ticket mark channel", and a poll of its process puts it back in its place. The entries have two more
-- fields for skipped entries: the field of a channel is the first skipped entry of its process, and 'aside' is the time
-- of the next removal of skipped entries whose lease has ended.
--
-- Foreign waiters, such as those of Redisson, have no entry: they wait for the key to be free, and for a message. They
-- have turns by the clock. From time to time a release leaves the lock free for `window` milliseconds, and notifies them.
-- Meanwhile the line waits. The field '' of the entries has the schedule: "at interval till polls left". The next turn is
-- at `at`, or after `left` grants if that is not 0. A turn ends at `till` (0: there is none). `polls` is how often the
-- first in line has polled during the turn. It polls when a foreign waiter releases the lock. So the turn was used if the
-- first polled twice, or finds the lock held. After a used turn, the next turn comes after one round of the line.
-- Otherwise it comes after twice the interval. After a used turn the interval is short, because a foreign waiter that
-- waits again, or is slow, may miss one turn. If a time is more than `ahead` milliseconds in the future, the clock was set
-- back after it was written, and it counts as past. A foreign waiter that is always slower than the window gets the lock
-- only when the line is empty: some need more than 5 ms to wake and to ask.
--
-- Each request of a waiter that finds the lock held is announced on the channel relock_wanted, to which the process of
-- the holder is subscribed if it wants to know (Mutex.Wanted, WithLinger).
local lock, queue, entries = KEYS[1], KEYS[3], KEYS[4]
local window, interval_taken, interval_first, interval_most, ahead = 10, 10, 100, 1000, 10000
local sweep_interval = 5000

-- Returns whether a key of the line contains something else. If the user may not use the commands, there is no line.
local function spoiled()
  for _, reply in ipairs({redis.pcall('zcard', queue), redis.pcall('hlen', entries)}) do
    if type(reply) == 'table' then
      if string.find(reply.err, 'WRONGTYPE', 1, true) then return true end
      queue = nil
    end
  end
  return false
end

-- Returns the token for an owner with that keep; 0 if none is wanted, nil if the counter contains something else. It is
-- stored when the owner has the lock.
local function token_for(keep)
  if keep == '-1' then return 0 end
  return (next_token(1, 2))
end

-- Returns the last token that was created; 0 if there is none, or none is wanted. Each waiter receives it, and so
-- recognizes the token of its grant, which is newer.
local function last_token(keep)
  local last = keep ~= '-1' and redis.pcall('get', KEYS[2])
  return type(last) == 'string' and string.find(last, '^%d+$') and tonumber(last) or 0
end

local function store(token, keep)
  if keep ~= '-1' then store_token(1, token, keep, 2) end
end

-- Returns whether no process is subscribed to channel, by the subcommand `count` of PUBSUB; false if it cannot be counted.
local silent = {}
local function unsubscribed(count, channel)
  if silent[channel] == nil then silent[channel] = count ~= '' and redis.pcall('pubsub', count, channel)[2] == 0 end
  return silent[channel]
end

-- Returns the place of the entry of field if it is set aside, otherwise false, and then its parts. Without parts there is
-- no entry, or it is invalid.
local function read(field)
  local entry = redis.call('hget', entries, field) or ''
  local place, skipped = string.match(entry, '^aside (%S+) (.*)$')
  return place or false, string.match(skipped or entry, '^(%d+) (%d+) (%-?%d+) (%d+) ([02]) (.*)$')
end

local function write(field, till, ...)
  redis.call('hset', entries, field, table.concat({string.format('%.0f', till), ...}, ' '))
end

-- Returns a place behind all entries, and behind the places of all entries that were set aside before.
local function last_place()
  local last = redis.call('zrevrange', queue, '0', '0', 'withscores')[2]
  if last then return last + 1 end
  local now = redis.call('time')
  return now[1] * 1000000 + now[2]
end

-- Adds field behind all others. If it waits already, or is set aside, it keeps its place.
local function enqueue(field, lease, keep, ticket, count, channel)
  -- If PEXPIRE is refused, no key may stay without expiry. While there is no key, it is harmless.
  redis.call('pexpire', queue, math.max(tonumber(lease), redis.call('pttl', queue)))
  local place = read(field)
  write(field, clock() + lease, lease, keep, ticket, unsubscribed(count, channel) and '2' or '0', channel)
  if not redis.call('zscore', queue, field) then
    redis.call('zadd', queue, place or string.format('%.0f', last_place()), field)
  end
  lengthen(entries, lease)
  lengthen(queue, lease)
end

-- Announces that an owner waits for the lock. 'relock_line' of the queue has 11 bytes.
local function announce(publish)
  -- mutant: wanted-unannounced/1
  redis.pcall(publish, 'relock_wanted' .. string.sub(queue, 12), '')
end

-- Removes field from the queue. The state of the whole queue is removed with the last field.
local function unqueue(field)
  redis.call('zrem', queue, field)
  if redis.call('exists', queue) == 0 then redis.call('hdel', entries, '', 'aside') end
end

-- Removes the entry of field, which no longer waits.
local function leave(field)
  local place, _, _, _, _, _, channel = read(field)
  if place and channel and redis.call('hget', entries, channel) == field then redis.call('hdel', entries, channel) end
  redis.call('hdel', entries, field)
  unqueue(field)
end

-- Keeps the entries of a process alive: from ARGV[3] on, for each waiter its field, the lease of its entry, and one more.
-- Returns a table that contains the fields that wait.
local function keep_alive(now, count)
  redis.call('zrem', queue, '') -- needs no memory, and so opens the way for HSET
  local longest, waiting = 0, {}
  for i = 3, #ARGV, 3 do
    local field, lease = ARGV[i], tonumber(ARGV[i + 1])
    local place, till, entry_lease, keep, ticket, _, channel = read(field)
    if till and (place or redis.call('zscore', queue, field)) then
      if place then
        redis.call('zadd', queue, place, field)
        redis.call('hdel', entries, channel)
      end
      -- mutant: line-poll-renews-nothing, line-poll-claims-subscribed
      write(field, now + lease, entry_lease, keep, ticket, unsubscribed(count, channel) and '2' or '0', channel)
      waiting[field], longest = true, math.max(longest, lease)
    else
      leave(field) -- one of the two keys may have been lost
    end
  end
  if longest > 0 then
    lengthen(entries, longest)
    lengthen(queue, longest)
  end
  return waiting
end

-- Removes entries that are set aside and have ended. Their processes may be dead, and then no poll removes them.
local function sweep(now)
  local all = redis.call('hgetall', entries)
  for i = 1, #all, 2 do
    local place, till = read(all[i])
    if place and not (till and tonumber(till) > now) then leave(all[i]) end
  end
end

-- Skips field, an entry in the queue with these parts, until its process polls.
local swept
local function set_aside(field, now, till, lease, keep, ticket, channel)
  local place = redis.call('zscore', queue, field)
  if not place then return leave(field) end -- the key of the line has just expired
  unqueue(field) -- needs no memory, and so opens the way for HSET
  redis.call('hset', entries, field, table.concat({'aside', place, till, lease, keep, ticket, '0', channel}, ' '))
  if redis.call('hexists', entries, channel) == 0 then redis.call('hset', entries, channel, field) end
  if swept then return end
  swept = true
  local at = tonumber(redis.call('hget', entries, 'aside') or 0)
  if at <= now or at > now + ahead then
    sweep(now)
    redis.call('hset', entries, 'aside', string.format('%.0f', now + sweep_interval))
  end
  lengthen(entries, math.max(tonumber(till) - now, 1)) -- if the key has just expired, HSET has created one without expiry
end

-- Returns the first live entry whose process is subscribed, as a table; nil if there is none. Entries before it are
-- removed if they are dead, and set aside if their processes are not subscribed. This entry counts as the first in line:
-- it gets the lock, or the message about a turn of foreign waiters.
local function first(count)
  local now
  while true do
    -- mutant: fair-last-first/2
    local field = redis.call('zrange', queue, '0', '0')[1]
    if not field then return nil end
    now = now or clock()
    local _, till, lease, keep, ticket, mark, channel = read(field)
    -- mutant: fair-dead-served/2
    if not till or tonumber(till) <= now then
      leave(field)
    elseif mark == '0' and unsubscribed(count, channel) then
      set_aside(field, now, till, lease, keep, ticket, channel)
    else
      return {field = field, lease = lease, keep = keep, ticket = ticket, channel = channel}
    end
  end
end

-- Reads and writes the schedule of foreign waiters. A failure to write it is harmless.
local function foreign()
  local at, interval, till, polls, left = string.match(redis.call('hget', entries, '') or '', '^(%d+) (%d+) (%d+) (%d+) (%d+)$')
  return tonumber(at), tonumber(interval), tonumber(till), tonumber(polls), tonumber(left)
end

-- Writes the schedule, unless the entries are gone: they may have been lost before the line.
local function set_foreign(at, interval, till, polls, left)
  redis.pcall('hset', entries, '', string.format('%.0f %d %.0f %d %d', at, interval, till, polls, left))
  if redis.call('pttl', entries) == -1 then redis.call('hdel', entries, '') end
end

-- Ends a turn of foreign waiters, which was used or not.
local function settle(now, interval, taken)
  if taken then return set_foreign(now, interval_taken, 0, 0, redis.call('zcard', queue)) end
  interval = math.min(2 * interval, interval_most)
  set_foreign(now + interval, interval, 0, 0, 0)
end

-- Returns how much longer the line has to wait for foreign waiters, if the lock is free; 0: it is not their turn. first:
-- the caller is the first in line.
local function reserved(first)
  local at, interval, till, polls, left = foreign()
  if not at or till == 0 then return 0 end
  local now = clock()
  -- mutant: line-foreign-turn-endless/1
  if now >= till or till > now + ahead then
    settle(now, interval, polls > 1)
    return 0
  end
  if first then set_foreign(at, interval, till, polls + 1, left) end
  -- mutant: line-foreign-turn-endless/2
  return till - now
end

-- Returns whether a release leaves the lock to foreign waiters. If so, it records the turn.
local function foreign_turn()
  local now, at, interval, till, _, left = clock(), foreign()
  if not at then
    if redis.call('exists', queue) == 1 then set_foreign(now + interval_first, interval_first, 0, 0, 0) end
    return false
  elseif till > 0 then
    settle(now, interval, true) -- one of them releases it
    return false
  elseif left > 1 or left == 0 and now < at and at <= now + ahead then
    if left > 1 then set_foreign(at, interval, 0, 0, left - 1) end
    return false
  end
  set_foreign(at, interval, now + window, 0, 0)
  return true
end

-- Grants the lock to head, the first in line, and sends its process the ticket and the token, which is 0 if none was
-- wanted or available. No owner except `last` holds the lock. If an earlier entry of that process was skipped, the earlier
-- entry gets the lock instead: the process lives, and its waiters keep their order.
-- Returns the field that got the lock, if any, the number of receivers, and the token, which is nil if it was not
-- available. One acquisition has one token: a script whose own field is served returns this token, and creates no other.
local function serve(publish, head, last)
  if not head then return nil end
  local field, lease, keep, ticket = head.field, head.lease, head.keep, head.ticket
  local before = redis.call('hget', entries, head.channel)
  if before then
    redis.call('hdel', entries, head.channel)
    local place, till, its_lease, its_keep, its_ticket = read(before)
    if place and till and tonumber(till) > clock() then
      field, lease, keep, ticket = before, its_lease, its_keep, its_ticket
    end
  end
  leave(field)
  if take(lock, field, lease) then return nil end
  if last then redis.call('hdel', lock, last) end
  local token = token_for(keep)
  if token then store(token, keep) end
  local receivers = redis.pcall(publish, head.channel, string.format('%s %.0f', ticket, token or 0))
  if type(receivers) == 'table' then receivers = -1 end
  return field, receivers, token
end
