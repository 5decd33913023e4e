-- Replaces the owner's field of locks in one step, so no other owner can acquire the locks in between: a hand-over to the next
-- owner, or the rename of a batch, of whose owners only the last is written.
--
-- KEYS  of a rename: the lock key, and its line, if the number of waiters is wanted
--       of a hand-over: n lock keys, then their n token counters if a token is requested
-- ARGV  from field, to field, lease (ms)
--       of a hand-over also: `lock`, or `rw` for a read-write lock
--       with several keys or a token also: n, lifetime of a counter (ms; 0 = forever)
--
-- Replies
--   {1, waiters}   renamed: the key holds to, for at least the lease; the number of waiters in the line, -1 if it is not known
--   {1, token}     handed over: every key holds to, for the lease; token 0, or 1 alone, without counters
--   {0, i}         lost: key i holds neither field
--   {-3, i}        counter i holds something other than a token; nothing was changed
--   {-6, i}        from also reads, and other readers may follow; nothing was changed
--
-- A rename never shortens a lease. A hand-over sets it, with the field of the new owner. Sent again, or delayed, the script
-- finds `to` in place, or neither field. Then it creates no lock, and shortens no lease; a hand-over creates a newer token.
--
-- No key is ever without a field. Otherwise the key would be deleted and created again, and while its slot moves, Redis
-- would reject that in the middle of the script.

local from, to, lease, kind = ARGV[1], ARGV[2], ARGV[3], ARGV[4]

-- Replaces from, which holds key, by to. false: the lease of key ended within this script.
local function pass(key)
  if kind or redis.call('pttl', key) < tonumber(lease) then
    redis.call('pexpire', key, lease) -- needs no memory, and so opens the way for HSET
  else
    redis.call('hdel', key, '')
  end
  local made = redis.call('hset', key, to, '1')
  if from ~= to then made = 1 - redis.call('hdel', key, from) end
  if made == 0 then return true end
  redis.call('hdel', key, to) -- see recount
  return false
end

local done = 1
if not kind then
  local waiters = KEYS[2] and redis.pcall('zcard', KEYS[2])
  if type(waiters) ~= 'number' then waiters = -1 end
  done = {1, waiters}
end
-- The usual case: one key, no token, and from does not read. Defining more functions would cost more than it does.
if not ARGV[5] and redis.pcall('hexists', KEYS[1], from) == 1 and not (kind == 'rw' and redis.call('hlen', KEYS[1]) > 2) then
  return pass(KEYS[1]) and done or {0, 1}
end

-- prelude
local n, passed = tonumber(ARGV[5]) or 1, {}
for i = 1, n do
  passed[i] = held(KEYS[i], to)
  if not passed[i] then
    -- mutant: rename-recreates
    if not held(KEYS[i], from) then return {0, i} end
    if kind == 'rw' and redis.call('hlen', KEYS[i]) > 2 then return {-6, i} end
  end
end

-- mutant: handoff-no-token
local token, bad = next_token(n, ARGV[5] and #KEYS or n)
if not token then return {-3, bad} end

for i = 1, n do
  if not passed[i] then
    if not pass(KEYS[i]) then -- of several keys the others may have been passed
      local refused = n == 1 and {0, 1} or take(KEYS[i], to, lease)
      if refused then return refused end
    end
  else
    if not lengthen(KEYS[i], lease) then return {0, i} end
    if from ~= to then redis.call('hdel', KEYS[i], from) end
  end
end
if not ARGV[5] then return done end
store_token(n, token, ARGV[6])
return {1, token}
