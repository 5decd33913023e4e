-- Gives locks another name: a hand-over, from one owner to the next, or the rename of a batch, of whose owners only the last is
-- written. It is one step, so no other owner can acquire the locks in between.
--
-- KEYS  of a rename: the lock key, and its line, if the number of waiters is wanted
--       of a hand-over: n lock keys, then their n token counters if a token is requested
-- ARGV  from field, to field, lease (ms)
--       of a hand-over also: the most fields that a key may have, 1, or 2 for a read-write lock
--       with several keys or a token also: n, lifetime of a counter (ms; 0 = forever)
--
-- Replies
--   {1, waiters}   renamed: the key holds to = 1 for at least the lease; the number of waiters in the line, -1 if it is not known
--   {1, token}     handed over: every key holds to = 1 for the lease; token 0, or 1 alone, without counters
--   {0, i}         lost: key i holds neither field; nothing was changed
--   {-3, i}        counter i holds something other than a token
--   {-6, i}        from also reads, and other readers may follow; nothing was changed
--
-- Sent again, or delayed, it finds `to` in place, or neither field. Then it creates no lock, and shortens no lease; a
-- hand-over creates a newer token. A rename never shortens a lease. A hand-over sets it with the field of the new owner.
--
-- No key is ever without a field. Otherwise the key would be deleted and created again, and while its slot moves, Redis
-- would reject that in the middle of the script.

local from, to, lease, most = ARGV[1], ARGV[2], ARGV[3], ARGV[4]

-- Replaces from, which holds key, by to. false: the lease of key ended within this script.
local function pass(key)
  if most or redis.call('pttl', key) < tonumber(lease) then
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
if not most then
  local waiters = KEYS[2] and redis.pcall('zcard', KEYS[2])
  if type(waiters) ~= 'number' then waiters = -1 end
  done = {1, waiters}
end
-- The usual case, one key and no token. Defining more functions would cost more than it does.
if not ARGV[5] and redis.pcall('hexists', KEYS[1], from) == 1 then
  if most == '2' and redis.call('hlen', KEYS[1]) > 2 then return {-6, 1} end
  return pass(KEYS[1]) and done or {0, 1}
end

-- prelude
local n, passed = tonumber(ARGV[5]) or 1, {}
for i = 1, n do
  passed[i] = held(KEYS[i], to)
  if not passed[i] then
    -- mutant: rename-recreates
    if not held(KEYS[i], from) then return {0, i} end
    if most == '2' and redis.call('hlen', KEYS[i]) > 2 then return {-6, i} end
  end
end

-- mutant: handoff-no-token
local token, bad = next_token(n, ARGV[5] and #KEYS or n)
if not token then return {-3, bad} end

for i = 1, n do
  if not passed[i] then
    local refused = not pass(KEYS[i]) and take(KEYS[i], to, lease)
    if refused then return refused end
  else
    if not lengthen(KEYS[i], lease) then return {0, i} end
    if from ~= to then redis.call('hdel', KEYS[i], from) end
  end
end
if not ARGV[5] then return done end
store_token(n, token, ARGV[6])
return {1, token}
