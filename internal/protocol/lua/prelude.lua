-- Shared by the scripts: plain.go puts this file before each, or where it says "prelude".
--
-- No script leaves a key without expiry, whatever time passes between two of its commands and whatever lease it
-- is given: a lease may run out in between, and PEXPIRE deletes a key whose lease is over. So what may make a key
-- comes before its expiry (take), or finds out that it has made one, and takes it back (recount).
--
-- Numbers that go to Redis are texts where they can be, as those of ARGV are: Redis 7.0 takes
-- longer to print one than to execute the command that it is for.

-- Whether key holds field. A key of another type holds no lock. That it does not is a
-- master's word: a server that has been one may know nothing of a hold, and refuses to write.
local function held(key, field)
  local found = redis.pcall('hexists', key, field)
  if type(found) == 'table' then
    if string.find(found.err, 'WRONGTYPE', 1, true) then return false end
    redis.call('hexists', key, field) -- raises the error as the server words it
  end
  if found == 0 then redis.call('hdel', key, field) end
  return found == 1
end

-- Whether a hash that is read as `fields` is a lock: each field but `mode` is an owner's,
-- uuid:owner, and has its count.
local function locked(fields)
  for i = 1, #fields, 2 do
    if fields[i] ~= 'mode' and
      not (string.find(fields[i], ':', 1, true) and string.find(fields[i + 1], '^[1-9]%d*$')) then return false end
  end
  return true
end

-- How lock i at key stands for field: whether field holds it, and if another does, or
-- it is no such lock, the reply that says so.
local function examine(key, i, field)
  local fields = redis.pcall('hlen', key)
  if type(fields) == 'table' then
    if string.find(fields.err, 'WRONGTYPE', 1, true) then return false, {-1, i} end
    return false, fields
  end
  if fields == 0 then return false end
  if fields == 1 and redis.call('hexists', key, field) == 1 then return true end
  if redis.call('hexists', key, 'mode') == 1 then return false, {-2, i} end
  if fields >= 64 then return false, {-1, i} end -- no lock, and too long to be read at every try
  local found = redis.call('hgetall', key)
  if #found == 0 then return false end -- only where time passes within a script: its lease has run out
  if not locked(found) then return false, {-1, i} end
  return false, {0, redis.call('pttl', key), i, found[1]}
end

-- Has field hold a key that is free, or that its owner before is about to leave. HSET comes first because it is what a server out of
-- memory refuses; a refused PEXPIRE is taken back, so that no key stays without expiry,
-- and returned.
local function take(key, field, lease)
  -- mutant: acquire-increments/1
  redis.call('hset', key, field, '1')
  local set = redis.pcall('pexpire', key, lease)
  if type(set) ~= 'table' then return nil end
  redis.call('hdel', key, field)
  return set
end

-- Sets field of a hash, which has it, to value. false: the lease ran out within this script, and the hash is gone.
local function recount(key, field, value)
  if redis.call('hset', key, field, value) == 0 then return true end
  redis.call('hdel', key, field)
  return false
end

-- Raises key's time to live to lease; never shortens it. It writes even if that is so long already, or longer:
-- a WAIT for replicas behind a script that has written nothing would tell nothing.
local function lengthen(key, lease)
  redis.call('pexpire', key, math.max(tonumber(lease), redis.call('pttl', key)))
end

-- Wakes the waiters on channel, and returns how many processes heard it; -1 if the
-- server refused: a script is not rolled back, and a missing permission must not
-- keep a lock held.
local function wake(command, channel, message)
  local heard = redis.pcall(command, channel, message or '0')
  if type(heard) == 'table' then return -1 end
  return heard
end

-- Wakes the first in the queue of Java's fair lock, if there is one: it listens to a channel
-- of its own. Returns how many processes heard it.
local function wake_java(command, channel, queue)
  local first = queue and redis.pcall('lindex', queue, '0')
  if type(first) ~= 'string' then return 0 end
  return math.max(wake(command, channel .. ':' .. first), 0)
end

-- A fencing token above every counter, which are the KEYS after the n locks (up to `last`, if
-- that is given), and not below the server's clock, so that tokens keep rising when a counter
-- was lost; 0 without counters. Reads only; nil and the position of the counter if one holds
-- something else than a token.
-- An owner that has the lock already gets a newer one, too: that may be a copy of its request, but it may also be an
-- earlier hold by the same name, which a failover has brought back.
local function next_token(n, last)
  if (last or #KEYS) == n then return 0 end
  local now = redis.call('time')
  -- mutant: fence-incr
  local token = now[1] * 1000000 + now[2]
  for i = n + 1, last or #KEYS do
    local before = redis.pcall('get', KEYS[i])
    if before then
      if type(before) == 'table' and not string.find(before.err, 'WRONGTYPE', 1, true) then
        redis.call('get', KEYS[i]) -- raises the error as the server words it
      end
      if type(before) ~= 'string' or not string.find(before, '^%d+$') then return nil, i - n end
      before = tonumber(before)
      if not before or before >= 9007199254740991 then return nil, i - n end
      if before >= token then token = before + 1 end
    end
  end
  return token
end

-- Stores token, as text, in a counter. One found without expiry keeps none; any other
-- lives for `keep` milliseconds, or for ever if that is 0.
local function store(counter, text, keep)
  if keep == '0' or redis.call('pttl', counter) == -1 then
    redis.call('set', counter, text)
  else
    redis.call('set', counter, text, 'px', keep)
  end
end

-- Stores token in every counter that next_token has read.
local function store_token(n, token, keep, last)
  local text = string.format('%.0f', token)
  for i = n + 1, last or #KEYS do store(KEYS[i], text, keep) end
end

-- The server's clock in milliseconds.
local function clock()
  local now = redis.call('time')
  return now[1] * 1000 + math.floor(now[2] / 1000)
end
