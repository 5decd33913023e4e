-- Shared by the scripts: plain.go puts this file before each, or where it says "prelude".
--
-- No script leaves a key without expiry, however much time passes between two of its commands and whatever its
-- lease: a lease may end in between, and PEXPIRE deletes a key whose lease is over. So a command that may create a key
-- comes before its expiry (take), or finds that it has created one, and takes it back (recount).
--
-- No script returns or grants a lock whose lease ends between two of its commands. Redis stops the time for a script, but
-- miniredis does not, and users test with it. So the reply of PEXPIRE counts: 0 means that the key is gone (take, lengthen).
--
-- Numbers are passed to Redis as texts where possible, as in ARGV: Redis 7.0 takes
-- longer to format a number than to execute its command.

-- Whether key holds field. A key of another type holds no lock. Only a master's "no" counts: a former master may not
-- have the hold, and rejects writes.
local function held(key, field)
  local found = redis.pcall('hexists', key, field)
  if type(found) == 'table' then
    if string.find(found.err, 'WRONGTYPE', 1, true) then return false end
    redis.call('hexists', key, field) -- raises the error as the server words it
  end
  if found == 0 then redis.call('hdel', key, field) end
  return found == 1
end

-- Returns whether a hash with these `fields` is a lock: each field except `mode` is an owner, uuid:owner, and has a count.
local function locked(fields)
  for i = 1, #fields, 2 do
    if fields[i] ~= 'mode' and
      not (string.find(fields[i], ':', 1, true) and string.find(fields[i + 1], '^[1-9]%d*$')) then return false end
  end
  return true
end

-- Returns whether field holds lock i at key. If not, and another owner holds it, or the key is no such lock, it also
-- returns the reply for that.
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

-- Makes field hold a key that is free, or whose owner is about to be removed. HSET comes first, because a server that is
-- out of memory rejects it. If PEXPIRE is refused, the field is removed again, so that no key stays without expiry, and
-- the error is returned. If the lease of that owner ends in between, the key is made again, without an expiry that could end.
local function take(key, field, lease)
  -- mutant: acquire-increments/1
  redis.call('hset', key, field, '1')
  local set = redis.pcall('pexpire', key, lease)
  if set == 0 then return take(key, field, lease) end
  if type(set) ~= 'table' then return nil end
  redis.call('hdel', key, field)
  return set
end

-- Sets an existing field of a hash to value. false: the lease ended within this script, and the hash is gone.
local function recount(key, field, value)
  if redis.call('hset', key, field, value) == 0 then return true end
  redis.call('hdel', key, field)
  return false
end

-- Raises the TTL of key to lease, and never shortens it. It writes even if the TTL is long enough, because a WAIT for
-- replicas after a script without a write would prove nothing. false: the key is gone.
local function lengthen(key, lease)
  return redis.call('pexpire', key, math.max(tonumber(lease), redis.call('pttl', key))) == 1
end

-- Wakes the waiters on channel, and returns how many processes received the message; -1 if the server refused. A refusal
-- does not stop the script: scripts are not rolled back, and without this permission a lock would stay held.
local function wake(command, channel, message)
  local receivers = redis.pcall(command, channel, message or '0')
  if type(receivers) == 'table' then return -1 end
  return receivers
end

-- Wakes the first waiter in the queue of Java's fair lock, if there is one. It is subscribed to a channel of its own.
-- Returns how many processes received the message.
local function wake_java(command, channel, queue)
  local first = queue and redis.pcall('lindex', queue, '0')
  if type(first) ~= 'string' then return 0 end
  return math.max(wake(command, channel .. ':' .. first), 0)
end

-- Returns a fencing token above every counter (the KEYS after the n locks, up to `last` if that is given), and not below
-- the server's clock, so that tokens keep rising after a counter was lost; 0 without counters. If a counter contains
-- something other than a token, it returns nil and the position of the counter. It only reads.
-- An owner that already has the lock gets a newer token, too: this may be a copy of its request, or the lock of an earlier
-- hold under the same name, which a failover has restored.
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

-- Stores a token, as text, in a counter. A counter without expiry stays without one. Any other lives for `keep`
-- milliseconds, or forever if that is 0.
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
