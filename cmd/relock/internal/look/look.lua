-- Reads all that Redis has about one name. It changes nothing.
--
-- KEYS  the lock; and, if the user may read them: its token counter, its line, its entries, the queue of Java's
--       fair lock, the claim of a writer that waits, the line for permits of a semaphore, and its entries
-- ARGV  prefix of the timeout keys, channel of a plain lock, channel of a read-write lock, the most waiters to return
--
-- Reply  {pttl, token, length, fields, lives, waiting, line, java, claim, listeners, permits}
--        pttl as PTTL says it; token as text, '' if there is none; length of the hash, -1 if the key is neither a hash
--        nor a semaphore;
--        fields as HGETALL says them; lives: {field, ms left, ...} of readers;
--        waiting: how many are in line; line: {field, ms left, mark, ...} in order; java: owners in order;
--        claim as text, '' if there is none; listeners: how many connections listen on the channels, -1 if unknown;
--        permits: {member, ms left, ...} of a semaphore, the leases that are over left out
local function value(command, ...)
  local reply = redis.pcall(command, ...)
  if type(reply) == 'table' and reply.err then return nil end
  return reply
end

local now = redis.call('time')
now = now[1] * 1000 + math.floor(now[2] / 1000)

local length = redis.pcall('hlen', KEYS[1])
if type(length) == 'table' then
  if not string.find(length.err, 'WRONGTYPE', 1, true) then return redis.call('hlen', KEYS[1]) end
  length = -1
end
-- A large sorted set of another program is not read: no semaphore has more members, and its first and last are permits.
local permits, n = {}, length < 0 and value('zcard', KEYS[1]) or 0
local function permit(at)
  return string.find(redis.call('zrange', KEYS[1], at, at)[1], '^[^:]+:[^:]+:[1-9]%d*:?%d*$')
end
if n > 0 and n <= 10000 and permit('0') and permit('-1') then
  length = 0
  local all = redis.call('zrange', KEYS[1], '0', '-1', 'withscores')
  for i = 1, #all, 2 do
    local left = tonumber(all[i + 1]) - now
    if left > 0 then
      permits[#permits + 1] = all[i]
      permits[#permits + 1] = left
    end
  end
end
local fields, lives = {}, {}
local mode = length > 0 and redis.call('hget', KEYS[1], 'mode')
if length > 0 and (mode or length < 64) then fields = redis.call('hgetall', KEYS[1]) end
if mode then
  for i = 1, #fields, 2 do
    local longest = -2
    if fields[i] ~= 'mode' and string.sub(fields[i], -6) ~= ':write' then
      for level = 1, math.min(tonumber(fields[i + 1]) or 0, 10000) do
        longest = math.max(longest, value('pttl', ARGV[1] .. ':' .. fields[i] .. ':rwlock_timeout:' .. level) or -2)
      end
      lives[#lives + 1] = fields[i]
      lives[#lives + 1] = longest
    end
  end
end

local waiting, line = 0, {}
for _, at in ipairs(KEYS[7] and {3, 7} or KEYS[3] and {3} or {}) do
  waiting = waiting + (value('zcard', KEYS[at]) or 0)
  for _, field in ipairs(value('zrange', KEYS[at], '0', ARGV[4] - 1) or {}) do
    local till, mark = string.match(value('hget', KEYS[at + 1], field) or '', '^(%d+) %d+ %-?%d+ %d+ ([012]) ')
    line[#line + 1] = field
    line[#line + 1] = till and till - now or 0
    line[#line + 1] = mark or ''
  end
end

local listeners = 0
for _, count in ipairs({'numsub', 'shardnumsub'}) do
  local reply = value('pubsub', count, ARGV[2], ARGV[3])
  if reply then listeners = listeners + reply[2] + reply[4] elseif count == 'numsub' then listeners = -1 break end
end

return {
  redis.call('pttl', KEYS[1]), KEYS[2] and value('get', KEYS[2]) or '', length, fields, lives, waiting, line,
  KEYS[5] and value('lrange', KEYS[5], '0', ARGV[4] - 1) or {}, KEYS[6] and value('get', KEYS[6]) or '', listeners, permits,
}
