-- Shared by the scripts of read-write locks: scripts_rw.go puts it after prelude.lua in each.
--
-- KEYS of all of them
--   1  the lock: a hash with the field `mode`, which is `read` or `write`, and for each hold a
--      field with its levels; that of a writer ends in `:write`
--   2  the claim of a writer that waits for readers: "from field"; "from " for the moment after
--      he has given up
-- ARGV[1] of all of them is what the names of timeout keys begin with.
--
-- Each level of a read hold has a timeout key, which lives for the hold's lease. A read hold
-- without any is dead, and whoever looks drops it. The hash lives as long as the longest of
-- its live holds. The names of timeout keys follow from its fields, so they are not in KEYS.
--
-- From `from` on, in milliseconds of this server's clock, and for as long as there is a claim,
-- nobody new may read.
local lock, claim, prefix = KEYS[1], KEYS[2], ARGV[1]

-- Whether the lock is held for `read` or for `write`; nil if it is free. Else the reply that
-- says what else it is.
local function examine_mode()
  local mode = redis.pcall('hget', lock, 'mode')
  if type(mode) == 'table' then
    if string.find(mode.err, 'WRONGTYPE', 1, true) then return nil, {-1, 1} end
    return nil, mode
  end
  if mode == 'read' or mode == 'write' then return mode end
  if mode then return nil, {-1, 1} end
  if redis.call('exists', lock) == 1 then return nil, {-5, 1} end
  return nil
end

local function timeout(field, level)
  return prefix .. ':' .. field .. ':rwlock_timeout:' .. level
end

-- The levels that a text says: not more than a script may look at.
local function levels(text)
  return math.min(tonumber(text) or 0, 10000)
end

local function levels_of(field)
  return levels(redis.call('hget', lock, field))
end

-- What is left of a read hold, as PTTL says it: -2 if it is dead.
local function left(field, count)
  local longest = -2
  for i = 1, count do
    longest = math.max(longest, redis.call('pttl', timeout(field, i)))
  end
  -- While a Cluster moves the slot, the lock may have come before the key: of two keys it
  -- refuses to look for the one that is missing, of a single one it says that there is none.
  if longest == -2 and count > 0 then redis.call('exists', lock, timeout(field, 1)) end
  return longest
end

-- Drops the timeout keys of some of field's levels.
local function untime(field, from, to)
  for i = from, to do redis.call('del', timeout(field, i)) end
end

local function writes(field)
  return string.sub(field, -6) == ':write'
end

-- Drops dead read holds. Returns the longest that a live one has left, and whose it is; nil if
-- there is none. One that has `enough` will do: it is the last that is looked at.
local function survey(enough)
  local longest, reader
  local fields = redis.call('hgetall', lock)
  for i = 1, #fields, 2 do
    local field = fields[i]
    if field ~= 'mode' then
      local life = left(field, levels(fields[i + 1]))
      if life == -2 then
        redis.call('hdel', lock, field)
      elseif not longest or life > longest then
        longest, reader = life, field
        if enough and life >= enough then break end
      end
    end
  end
  return longest, reader
end

-- After a hold has gone: the lock is a writer's, or that of the readers who are left, for as
-- long as the longest of them, which need not be known if one has enough; else it is free,
-- which settle returns.
local function settle(enough)
  if redis.call('hget', lock, 'mode') == 'write' then
    for _, field in ipairs(redis.call('hkeys', lock)) do
      if writes(field) then return false end
    end
  end
  local longest = survey(enough)
  if not longest then
    redis.call('del', lock)
    return true
  end
  if enough and longest >= enough then return false end
  redis.call('hset', lock, 'mode', 'read')
  if longest >= 0 then redis.call('pexpire', lock, math.max(longest, 1)) end
  return false
end

-- Has field hold the lock, which is free or shared, as mode says. A refused PEXPIRE is
-- taken back, so that no key stays without expiry, and returned.
local function join(free, mode, field, lease)
  redis.call('hset', lock, 'mode', mode, field, '1')
  if not free and redis.call('pttl', lock) >= tonumber(lease) then return nil end
  local set = redis.pcall('pexpire', lock, lease)
  if type(set) ~= 'table' then return nil end
  redis.call('hdel', lock, field)
  if free then redis.call('del', lock) end
  return set
end

-- Wakes all waiters, and returns how many processes heard it. In Java `1` wakes the threads
-- that sleep, and `0` one; only `0` is remembered for one that is just about to sleep.
local function wake_all(command, channel)
  local heard = wake(command, channel, '1')
  wake(command, channel)
  return heard
end

-- The reply that somebody has the lock.
local function busy()
  local holder = ''
  for _, field in ipairs(redis.call('hkeys', lock)) do
    if field ~= 'mode' then holder = field end
    if writes(field) then break end
  end
  return {0, redis.call('pttl', lock), 1, holder}
end

-- The claim: when it begins, and the field of the writer whose it is, '' if it is nobody's any
-- more; nil if there is none.
local function claimed()
  local text = redis.pcall('get', claim)
  if type(text) ~= 'string' then return nil end
  local from, writer = string.match(text, '^(%d+) (.*)$')
  return tonumber(from), writer
end
