-- Shared by the scripts that mind the line: lined.go puts it after prelude.lua in each.
--
-- KEYS of all of them; the first, or the first two, will do where a script says so
--   1  the lock
--   2  its token counter
--   3  its line: a sorted set of the fields that wait, by a number that rises with each that comes
--   4  its entries: a hash from field to what a grant needs: "end lease keep ticket mark channel"
--   5  the queue of Java's fair lock
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
--   1  it did not listen when the lock was to be granted: it is skipped. The version before leaves such an
--      entry in the queue; see set_aside
--   2  it did not listen when it last said so, as one that has only just come, or has lost its connection:
--      it is alive, and gets the lock whether it hears of it or not
-- To look comes before the grant: a count of those who heard a grant would come too late, since a
-- process that listens to a former master hears it, too.
--
-- Each entry that is skipped is paid for once: it leaves the queue, so that no later script walks over it. It is
-- set aside in the entries, as "aside place end lease keep ticket mark channel", and a poll of its process brings
-- it back to its place. The entries have two more fields for those that are set aside: that of a channel names the
-- first skipped entry of its process, and 'aside' says when those whose time is over are to be dropped next.
-- The version before knows no such entry: its poll says that the entry is gone, and the waiter gets a new place.
--
-- Strangers, as waiters of Redisson, have no place in the line: they wait for the key to be free, and for a
-- message. They have their turn by the clock. Now and then a release leaves the lock free for `window`
-- milliseconds, and tells them; those in the line wait so long. The field '' of the entries says when:
-- "at interval till polls left". The next such turn is at `at`, or after `left` grants if that is not 0. In
-- one, which ends at `till`, else 0, the first in line has polled `polls` times. It polls when a stranger
-- gives the lock back: so the turn was taken if it did so twice, or finds the lock held. Then the next one
-- comes after one round of the line; else after twice the interval, which is short after a turn that was
-- taken: a stranger that waits again, or is slow, may have missed only one. A time that is more than `ahead`
-- milliseconds to come was noted by a clock that has been set back since: it counts as over.
local lock, queue, entries = KEYS[1], KEYS[3], KEYS[4]
local window, interval_taken, interval_first, interval_most, ahead = 5, 10, 100, 1000, 10000
local sweep_interval = 5000

-- Whether a foreign value is where the line should be. Where its commands are not allowed there is none.
local function spoiled()
  for _, reply in ipairs({redis.pcall('zcard', queue), redis.pcall('hlen', entries)}) do
    if type(reply) == 'table' then
      if string.find(reply.err, 'WRONGTYPE', 1, true) then return true end
      queue = nil
    end
  end
  return false
end

-- The token for an owner who wishes as keep says: 0 for none, nil if the counter holds
-- something else. To be stored when the lock is its own.
local function token_for(keep)
  if keep == '-1' then return 0 end
  return (next_token(1, 2))
end

-- The last token that was minted, 0 if there is none, or none is wished. Each that waits is told: so it knows that of its
-- grant, which is newer.
local function last_token(keep)
  local last = keep ~= '-1' and redis.pcall('get', KEYS[2])
  return type(last) == 'string' and string.find(last, '^%d+$') and tonumber(last) or 0
end

local function store(token, keep)
  if keep ~= '-1' then store_token(1, token, keep, 2) end
end

-- Whether no process listens on channel, as the subcommand `count` of PUBSUB says; not if it cannot.
local silent = {}
local function deaf(count, channel)
  if silent[channel] == nil then silent[channel] = count ~= '' and redis.pcall('pubsub', count, channel)[2] == 0 end
  return silent[channel]
end

-- Reads the entry of field: its place if it is set aside, else false, and its parts. Without parts there is no
-- entry, or none that can be read.
local function read(field)
  local entry = redis.call('hget', entries, field) or ''
  local place, skipped = string.match(entry, '^aside (%S+) (.*)$')
  return place or false, string.match(skipped or entry, '^(%d+) (%d+) (%-?%d+) (%d+) ([012]) (.*)$')
end

local function write(field, till, ...)
  redis.call('hset', entries, field, table.concat({string.format('%.0f', till), ...}, ' '))
end

-- The place behind all others, and behind those that were set aside when the queue had others.
local function last_place()
  local last = redis.call('zrevrange', queue, '0', '0', 'withscores')[2]
  if last then return last + 1 end
  local now = redis.call('time')
  return now[1] * 1000000 + now[2]
end

-- Has field wait behind all others; if it waits already, or is set aside, it keeps its place.
local function enqueue(field, lease, keep, ticket, count, channel)
  -- Refused, PEXPIRE must not leave a key without expiry. It is free while there is no key.
  redis.call('pexpire', queue, math.max(tonumber(lease), redis.call('pttl', queue)))
  local place = read(field)
  write(field, clock() + lease, lease, keep, ticket, deaf(count, channel) and '2' or '0', channel)
  if not redis.call('zscore', queue, field) then
    redis.call('zadd', queue, place or string.format('%.0f', last_place()), field)
  end
  lengthen(entries, lease)
  lengthen(queue, lease)
end

-- Takes field out of the queue. What is known for the whole queue goes with the last one.
local function unqueue(field)
  redis.call('zrem', queue, field)
  if redis.call('exists', queue) == 0 then redis.call('hdel', entries, '', 'aside') end
end

-- Forgets field, which waits no more.
local function leave(field)
  local place, _, _, _, _, _, channel = read(field)
  if place and channel then redis.call('hdel', entries, channel) end
  redis.call('hdel', entries, field)
  unqueue(field)
end

-- Drops the entries that are set aside and whose time is over: no one asks for those of a dead process.
local function sweep(now)
  local all = redis.call('hgetall', entries)
  for i = 1, #all, 2 do
    local place, till = read(all[i])
    if place and not (till and tonumber(till) > now) then leave(all[i]) end
  end
end

-- Skips field, which is in the queue with an entry of these parts, until its process polls.
local swept
local function set_aside(field, now, till, lease, keep, ticket, mark, channel)
  local place = redis.call('zscore', queue, field)
  if not place then return leave(field) end -- the time of the whole line has just run out
  unqueue(field) -- needs no memory, and so opens the way for HSET
  redis.call('hset', entries, field, table.concat({'aside', place, till, lease, keep, ticket, mark, channel}, ' '))
  if redis.call('hexists', entries, channel) == 0 then redis.call('hset', entries, channel, field) end
  if swept then return end
  swept = true
  local at = tonumber(redis.call('hget', entries, 'aside') or 0)
  if at <= now or at > now + ahead then
    sweep(now)
    redis.call('hset', entries, 'aside', string.format('%.0f', now + sweep_interval))
  end
  lengthen(entries, sweep_interval) -- HSET makes a key without expiry where that of before has just run out
end

-- The first live entry whose process listens, as a table; nil: there is none. The dead before it are dropped,
-- and those that do not listen are set aside. All that is for the first in line goes to this one: the lock, and
-- the word that strangers have their turn.
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
    elseif mark == '1' or mark == '0' and deaf(count, channel) then
      set_aside(field, now, till, lease, keep, ticket, mark, channel)
    else
      return {field = field, lease = lease, keep = keep, ticket = ticket, channel = channel}
    end
  end
end

-- Reads and writes when strangers have their turn. It is no loss if it cannot be written.
local function strangers()
  local at, interval, till, polls, left = string.match(redis.call('hget', entries, '') or '', '^(%d+) (%d+) (%d+) (%d+) (%d+)$')
  return tonumber(at), tonumber(interval), tonumber(till), tonumber(polls), tonumber(left)
end

-- Without entries there is nothing to note: they may have been lost before the line.
local function set_strangers(at, interval, till, polls, left)
  redis.pcall('hset', entries, '', string.format('%.0f %d %.0f %d %d', at, interval, till, polls, left))
  if redis.call('pttl', entries) == -1 then redis.call('hdel', entries, '') end
end

-- Ends a turn of strangers, which took the lock or did not.
local function settle(now, interval, taken)
  if taken then return set_strangers(now, interval_taken, 0, 0, redis.call('zcard', queue)) end
  interval = math.min(2 * interval, interval_most)
  set_strangers(now + interval, interval, 0, 0, 0)
end

-- How long those in the line are to wait for strangers yet, when the lock is free; 0: no longer. first: the
-- first in line asks.
local function reserved(first)
  local at, interval, till, polls, left = strangers()
  if not at or till == 0 then return 0 end
  local now = clock()
  -- mutant: line-strangers-stay/1
  if now >= till or till > now + ahead then
    settle(now, interval, polls > 1)
    return 0
  end
  if first then set_strangers(at, interval, till, polls + 1, left) end
  -- mutant: line-strangers-stay/2
  return till - now
end

-- Whether a release is to leave the lock to strangers, of whom it takes note.
local function strangers_turn()
  local now, at, interval, till, _, left = clock(), strangers()
  if not at then
    if redis.call('exists', queue) == 1 then set_strangers(now + interval_first, interval_first, 0, 0, 0) end
    return false
  elseif till > 0 then
    settle(now, interval, true) -- one of them gives it back
    return false
  elseif left > 1 or left == 0 and now < at and at <= now + ahead then
    if left > 1 then set_strangers(at, interval, 0, 0, left - 1) end
    return false
  end
  set_strangers(at, interval, now + window, 0, 0)
  return true
end

-- Grants the lock, which no one holds but `last`, to head, the first in line, and tells its process the ticket
-- and the token, which is 0 if none was wished or could be had. If an earlier entry of that process was skipped, the
-- earlier one gets the lock instead: the process lives, and its waiters keep their order.
-- Returns the field that got the lock, if any, how many heard it, and the token, nil if it could not be had. One
-- acquisition has one token: a script whose own field is served returns this one, and mints no other.
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
  local heard = redis.pcall(publish, head.channel, string.format('%s %.0f', ticket, token or 0))
  if type(heard) == 'table' then heard = -1 end
  return field, heard, token
end
