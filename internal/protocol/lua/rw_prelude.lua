-- Shared by the scripts of read-write locks: rw.go puts it after prelude.lua in each.
--
-- KEYS[1] of each is the lock: a hash with the field `mode`, which is `read` or `write`,
-- and for each hold a field with its count; a writer's field ends in `:write`.
-- ARGV[1] of each is the prefix of the names of timeout keys.
--
-- Each count of a read hold has a timeout key, which lives for the hold's lease. A read hold
-- without any timeout key is dead, and a script that finds it removes it. The hash lives at least as long as the
-- longest of its live holds, and with few holds not longer. The names of timeout keys follow
-- from its fields, so they are not in KEYS.
--
-- While a Cluster moves the slot, these keys may be on two nodes, and Redis refuses to touch a key
-- that is not on the node of the script. So each script reads all that it needs before it changes
-- anything (to remove a dead hold changes nothing): if refused, it may be sent again.
--
-- The claim, a key of its own, belongs to a writer that waits for readers: "from field". For a moment after that writer
-- has given up, it is "from ". From the time `from`, in milliseconds of this server's clock, while the claim exists, no
-- new reader gets the lock.
local lock, prefix = KEYS[1], ARGV[1]

-- Returns at least n fields of the lock with their values, or all if there are fewer, and whether these are all fields.
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

-- Returns whether the lock is held for `read` or for `write`, or nil if it is free. If the key is not a read-write lock,
-- it returns the reply for that.
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

-- The count in a text, bounded by what a script may look at.
local function levels(text)
  return math.min(tonumber(text) or 0, 10000)
end

local function levels_of(field)
  return levels(redis.call('hget', lock, field))
end

-- The rest of a read hold's lease, as PTTL returns it: -2 if the hold is dead.
local function left(field, count)
  local longest = -2
  for i = 1, count do
    longest = math.max(longest, redis.call('pttl', timeout(field, i)))
  end
  -- While a Cluster moves the slot, the lock may have arrived before the key. For two keys Redis
  -- refuses if one is missing; for a single key it would return that there is none.
  if longest == -2 and count > 0 then redis.call('exists', lock, timeout(field, 1)) end
  return longest
end

-- Deletes the timeout keys of some of field's counts.
local function untime(field, from, to)
  for i = from, to do redis.call('del', timeout(field, i)) end
end

-- The number of fields, with the mode, that count as few: then the longest reader's hold is known.
local few = 17

local function writes(field)
  return string.sub(field, -6) == ':write'
end

-- Returns a live reader other than the fields in `gone`; nil if there is none. If it has
-- looked at all readers, it also returns the longest rest of a lease. It looks at n fields at a time, which
-- are at least three and more than `gone`, and removes the dead holds among them: each is paid for once,
-- however many readers there are.
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

-- Who has the lock without the holds in `gone`: a writer, or the result of survey for readers. It is called
-- before the first change.
local function heir(gone, n)
  if redis.call('hget', lock, 'mode') == 'write' then
    for _, field in ipairs(redis.call('hkeys', lock)) do
      if writes(field) and not gone[field] then return field end
    end
  end
  return survey(gone, n)
end

-- Ends holds. The lock stays with their heir, for as long as the longest of the readers if that is
-- known. Otherwise it is free, which settle returns.
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

-- The reply to a reader: the PTTL that the lock had before, from 1 to the reader's lease, or the lease if there was no
-- lock. Java's watchdog sets the lock's TTL to its own lease, even if other readers need it for longer. The reply shows
-- them how soon they have to renew.
local function seen(had, lease)
  lease = tonumber(lease)
  if had < 0 then return lease end
  return math.max(1, math.min(had, lease))
end

-- Raises the lock's TTL to lease for a reader whose hold has `life` left, and returns the reply to that
-- reader: its lease if the lock would have lived for as long as the reader needs. Some servers
-- read the clock for each command. nil: the lock is gone.
local function prolong(lease, life)
  local had = redis.call('pttl', lock)
  if had < tonumber(lease) and redis.call('pexpire', lock, lease) == 0 then return nil end
  if had >= life - 10 then return tonumber(lease) end
  return seen(had, lease)
end

-- Makes field hold the lock, which is free or shared, in that mode. If PEXPIRE is refused, the field is
-- removed again, so that no key stays without expiry, and the error is returned. If the leases of all others end in between,
-- the lock is made again: see take.
local function join(free, mode, field, lease)
  redis.call('hset', lock, 'mode', mode, field, '1')
  if not free and redis.call('pttl', lock) >= tonumber(lease) then return nil end
  local set = redis.pcall('pexpire', lock, lease)
  if set == 0 then return join(true, 'read', field, lease) end -- only a reader joins others
  if type(set) ~= 'table' then return nil end
  redis.call('hdel', lock, field)
  if free then redis.call('del', lock) end
  return set
end

-- Wakes all waiters, and returns how many processes received the message. In Java `1` wakes all sleeping threads, and `0`
-- wakes one. Only `0` also counts for a thread that is about to sleep.
local function wake_all(command, channel)
  local receivers = wake(command, channel, '1')
  wake(command, channel)
  return receivers
end

-- Announces that the owner of this request waits for the lock, to the process of the holder if it wants to know
-- (RWMutex.Wanted). Without a command the owner does not wait, or has only just come.
local function announce(command, channel)
  -- mutant: wanted-unannounced/3
  if command then redis.pcall(command, channel, '') end
end

-- The reply that another owner holds the lock, which is announced.
local function busy(command, channel)
  announce(command, channel)
  local holder = ''
  for _, field in ipairs(redis.call('hkeys', lock)) do
    if field ~= 'mode' then holder = field end
    if writes(field) then break end
  end
  return {0, redis.call('pttl', lock), 1, holder}
end

-- A claim: its begin, and the field of its writer, '' if the writer has given up;
-- nil if there is no claim.
local function claimed(claim)
  local text = redis.pcall('get', claim)
  if type(text) ~= 'string' then return nil end
  local from, writer = string.match(text, '^(%d+) (.*)$')
  return tonumber(from), writer
end
