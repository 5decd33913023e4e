-- Shared by the scripts for permits: permits.go puts it after line_prelude.lua in each.
--
-- KEYS  as in the line's prelude, without the queue of Java's fair lock. The semaphore is in place of the lock: a sorted
-- set of the permits in use, each by the end of its lease, in milliseconds of this server's clock. A member is
-- uuid:number:weight. A permit whose weight is above 1 has more members, uuid:number:weight:2 and so on, so that the
-- number of members is the weight in use, and no script has to read them all. The line has keys of its own, so no script
-- for locks grants anything to a waiter for permits. In an entry the limit of its request is in place of keep, and the
-- weight is in its field.
--
-- Invariants:
--   A permit counts until the end of its lease, and is nobody's after it. No script brings it back.
--   No limit is stored. A request is granted if the weights of all permits, and its own, are at most the limit in it.
--   The first live entry in line that does not fit keeps all others waiting.
--   Nothing is written if the key is not a semaphore.
local set = lock
-- A set with more members is no semaphore: no client asks for a higher limit.
local most = 10000

-- Returns the weight of a permit or a waiter; nil: the name is neither. A weight that no permit can have is none, because each costs
-- so many writes, and nobody can stop a script that has written.
local function weight(name)
  local n = tonumber(string.match(name, '^[^:]+:[^:]+:([1-9]%d*)$') or most + 1)
  return n <= most and n or nil
end

-- Calls fn with each member of a permit.
local function each(permit, fn)
  fn(permit)
  -- mutant: permit-weight-forgotten
  for i = 2, weight(permit) or 1 do fn(permit .. ':' .. i) end
end

local function remove(key, permit)
  each(permit, function(member) redis.call('zrem', key, member) end)
end

-- Returns whether permit is in use at key: its lease is not over. If not, it is removed: only a master's "no" counts,
-- and a former master rejects the write.
local function has(key, permit, now)
  local till = redis.pcall('zscore', key, permit)
  if type(till) == 'table' then
    if string.find(till.err, 'WRONGTYPE', 1, true) then return false end
    redis.call('zscore', key, permit) -- raises the error as the server words it
  end
  if till and tonumber(till) > now then return true end
  remove(key, permit)
  return false
end

-- Returns how long the set has to live: until the latest end, whatever its expiry is. Another program may have removed that.
local function life(key, now)
  local last = redis.call('zrange', key, '-1', '-1', 'withscores')[2]
  return string.format('%.0f', math.max(1, tonumber(last or now) - now))
end

-- Extends the lease of a permit, and never shortens it. Redis before 6.2 does not know the option GT of ZADD. false: the
-- lease has ended within this script, and the set is gone.
local function prolong(key, permit, now, lease)
  local till = tonumber(redis.call('zscore', key, permit))
  -- mutant: permit-renew-recreates/2
  if till and till < now + lease then
    till = string.format('%.0f', now + lease)
    redis.call('zrem', key, '') -- needs no memory, and so opens the way for ZADD
    -- mutant: permit-renew-recreates/3
    each(permit, function(member) redis.call('zadd', key, 'XX', till, member) end)
  end
  return redis.call('pexpire', key, life(key, now)) == 1 -- always: see lengthen
end

-- Adds a permit. If PEXPIRE is refused, the permit is removed again, and the error is returned.
local function give(permit, now, lease)
  local till = string.format('%.0f', now + lease)
  each(permit, function(member) redis.call('zadd', set, till, member) end)
  local refused = redis.pcall('pexpire', set, life(set, now))
  if refused == 0 then return give(permit, now, lease) end -- see take
  if type(refused) ~= 'table' then return nil end
  remove(set, permit)
  return refused
end

-- Returns the first member of the set, or the last one (at = '0', '-1'), and the end of its lease; nil if there is none;
-- false if the member does not belong to a permit. The uuid matters: members that are over are removed, and those of another
-- program could be a word and two numbers.
local function member(at)
  local found = redis.call('zrange', set, at, at, 'withscores')
  if not found[1] then return nil end
  if not string.find(found[1], '^%x+%-%x+%-%x+%-%x+%-%x+:%d+[.kept]*:[1-9]%d*:?%d*$') then return false end
  return found[1], tonumber(found[2])
end

-- Returns the number of members; or nil, and the reply for a key that is no semaphore. Only two members are checked.
local function size()
  local n = redis.pcall('zcard', set)
  if type(n) == 'table' then
    if string.find(n.err, 'WRONGTYPE', 1, true) then return nil, {-1, 1} end
    return nil, n
  end
  if n > most or member('0') == false or member('-1') == false then return nil, {-1, 1} end
  return n
end

-- Removes the permits whose lease is over, and returns the weight in use; or nil, and the reply for a key that is no
-- semaphore.
local function in_use(now)
  local used, other = size()
  while used do
    local first, till = member('0')
    if first == false then return nil, {-1, 1} end
    -- mutant: permit-live-dropped/2, permit-expired-live
    if not first or till > now then break end
    redis.call('zrem', set, first)
    used = used - 1
  end
  return used, other
end

-- Returns the reply that there is no room: the permit that ends first, and in how many milliseconds.
local function full(now)
  local first, till = member('0')
  if not first then return {0, -1, 1, ''} end -- the head of the line could not be given its permits
  return {0, math.max(0, till - now), 1, first}
end

-- Puts the skipped entries of the process of channel back in their places, because that process lives. Returns whether
-- there were any. Mark 2: they are not skipped again before the next request for them.
local function restore(channel, now)
  if redis.call('hdel', entries, channel) == 0 then return false end
  local restored, all = false, redis.call('hgetall', entries)
  for i = 1, #all, 2 do
    local place, till, lease, limit, ticket, _, its = read(all[i])
    if place and its == channel and tonumber(till) > now then
      restored = true
      redis.call('zadd', queue, place, all[i])
      write(all[i], tonumber(till), lease, limit, ticket, '2', channel)
      lengthen(queue, lease)
      lengthen(entries, lease)
    end
  end
  return restored
end

-- Grants permits to the first entries in line, as many as fit, and sends each process one message with the
-- tickets of all its entries that were served. used is the weight in use. Returns the new one, a table that contains the
-- fields that were served, and the least number of receivers of a message; nil if none was sent.
-- A share that stays reserved after its release ends without any script. So the process of the first entry that still waits
-- is asked to poll, and learns when that is: after such a release (keeps), and if the entry has just become the first.
local function serve_all(publish, count, used, now, keeps)
  local served, channels, payloads = {}, {}, {}
  local head = first(count)
  while head do
    local wanted = weight(head.field)
    if not wanted then
      leave(head.field) -- another program wrote it
    elseif not restore(head.channel, now) then
      -- mutant: permit-over-limit/3
      if used + wanted > tonumber(head.keep) then break end
      leave(head.field)
      if give(head.field, now, head.lease) then break end
      used = used + wanted
      served[head.field] = true
      if not payloads[head.channel] then
        channels[#channels + 1], payloads[head.channel] = head.channel, {}
      end
      table.insert(payloads[head.channel], head.ticket .. ' 0')
    end
    -- mutant: permit-one-head
    head = first(count)
  end
  local least
  for _, channel in ipairs(channels) do
    local receivers = wake(publish, channel, table.concat(payloads[channel], ' '))
    if not least or receivers < least then least = receivers end
  end
  -- mutant: permit-min-hold-unannounced
  if head and (keeps or least) and string.find(member('0') or '', '.kept:', 1, true) then redis.pcall(publish, head.channel, 'ask') end
  return used, served, least
end
