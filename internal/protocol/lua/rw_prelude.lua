-- Shared by the scripts of read-write locks: rw.go puts it after prelude.lua in each.
--
-- KEYS[1] of all of them is the lock: a hash with the field `mode`, which is `read` or `write`,
-- and for each hold a field with its levels; that of a writer ends in `:write`.
-- ARGV[1] of all of them is what the names of timeout keys begin with.
--
-- Each level of a read hold has a timeout key, which lives for the hold's lease. A read hold
-- without any is dead, and a script that finds it drops it. The hash lives as long as the longest
-- of its live holds at least; not for longer once there are few. The names of timeout keys follow
-- from its fields, so they are not in KEYS.
--
-- While a Cluster moves the slot, these keys may be on two nodes, and Redis refuses to touch one
-- that is not on the script's. So each script looks at all that it needs before it changes
-- anything (that a dead hold is dropped changes nothing): refused, it may be sent again.
--
-- The claim, a key of its own, is a writer's that waits for readers: "from field"; "from " for
-- the moment after it has given up. From `from` on, in milliseconds of this server's clock, and for
-- as long as there is a claim, no new reader may come in.
local lock, prefix = KEYS[1], ARGV[1]

-- So many fields of the lock and their values, or more; and whether they are all, as they are if
-- there are less.
local function some(n)
  local fields = redis.pcall('hrandfield', lock, n, 'withvalues')
  if not fields.err then return fields, #fields < 2 * n end
  local cursor, more = '0'
  fields = {}
  repeat -- Redis has no HRANDFIELD before 6.2
    cursor, more = unpack(redis.call('hscan', lock, cursor, 'count', n))
    for _, text in ipairs(more) do fields[#fields + 1] = text end
  until cursor == '0' or #fields >= 2 * n
  return fields, cursor == '0'
end

-- Whether the lock is held for `read` or for `write`; nil if it is free. Else the reply that
-- says what else it is.
local function examine_mode()
  local mode = redis.pcall('hget', lock, 'mode')
  if type(mode) == 'table' then
    if string.find(mode.err, 'WRONGTYPE', 1, true) then return nil, {-1, 1} end
    return nil, mode
  end
  if mode == 'read' or mode == 'write' then
    local fields = some(3)
    if #fields == 0 then return nil end -- see examine
    if locked(fields) and (mode == 'read' or #fields > 2) then return mode end
  end
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

-- So many fields, with the mode, are few: then it is known which reader's hold is the longest.
local few = 17

local function writes(field)
  return string.sub(field, -6) == ':write'
end

-- Returns a reader that is alive, other than the fields in `gone`; nil if there is none. If it has
-- looked at all of them, then also the longest that one has left. It looks at n fields at a time, which
-- are at least three and more than `gone`, and drops the dead among them: each is paid for once,
-- however many read.
local function survey(gone, n)
  while true do
    local reader, longest, dead = nil, -1, {}
    local fields, all = some(n)
    for i = 1, #fields, 2 do
      local field = fields[i]
      if field ~= 'mode' and not gone[field] then
        local life = left(field, levels(fields[i + 1]))
        if life == -2 then
          dead[#dead + 1] = field
        else
          reader, longest = field, math.max(longest, life)
          if not all then break end
        end
      end
    end
    if #dead > 0 then redis.call('hdel', lock, unpack(dead)) end
    if reader or all then return reader, all and longest end
  end
end

-- Who has the lock without the holds in `gone`: a writer, or what survey says of readers. It comes
-- before the first change.
local function heir(gone, n)
  if redis.call('hget', lock, 'mode') == 'write' then
    for _, field in ipairs(redis.call('hkeys', lock)) do
      if writes(field) and not gone[field] then return field end
    end
  end
  return survey(gone, n)
end

-- Ends holds. The lock is their heir's then, for as long as the longest of the readers if that is
-- known; else it is free, which settle returns.
local function settle(gone, heir, longest)
  for field, had in pairs(gone) do
    untime(field, 1, had)
    redis.call('hdel', lock, field)
  end
  if not heir then
    redis.call('del', lock)
    return true
  end
  if writes(heir) then return false end
  recount(lock, 'mode', 'read')
  if longest and longest >= 0 then redis.call('pexpire', lock, math.max(longest, 1)) end
  return false
end

-- What a reader is told: the PTTL that the lock had before, from 1 to its lease; the lease also if
-- there was none. Java's watchdog gives the lock its own lease, however much longer others
-- need it: so they know how soon they have to renew.
local function seen(had, lease)
  lease = tonumber(lease)
  if had < 0 then return lease end
  return math.max(1, math.min(had, lease))
end

-- Raises the lock's time to live to lease for a reader that has `life` left, and returns what it
-- is told: its lease, too, if the lock would have lived for as long as it needs. Some servers
-- look at the clock for each command.
local function prolong(lease, life)
  local had = redis.call('pttl', lock)
  if had < tonumber(lease) then redis.call('pexpire', lock, lease) end
  if had >= life - 10 then return tonumber(lease) end
  return seen(had, lease)
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

-- The reply that another owner has the lock.
local function busy()
  local holder = ''
  for _, field in ipairs(redis.call('hkeys', lock)) do
    if field ~= 'mode' then holder = field end
    if writes(field) then break end
  end
  return {0, redis.call('pttl', lock), 1, holder}
end

-- A claim: when it begins, and the field of the writer whose it is, '' if it is no one's any
-- more; nil if there is none.
local function claimed(claim)
  local text = redis.pcall('get', claim)
  if type(text) ~= 'string' then return nil end
  local from, writer = string.match(text, '^(%d+) (.*)$')
  return tonumber(from), writer
end
