-- Sets hold counts on the way down; a count of 0 gives the lock back and wakes
-- its waiters.
--
-- KEYS  n lock keys
-- ARGV  field, publish command, then for each key its count and its channel ('' = wake nobody)
--
-- Replies
--   heard        done; each wake-up was heard by so many processes at least, -1 if one was refused
--   {0, heard}   not ours: a key did not hold field; the other keys were released all the same

-- The usual cases, one key that is given back, and one that keeps a level. To define
-- functions costs more than they do.
if #KEYS == 1 and ARGV[4] ~= '' then
  if ARGV[3] == '0' then
    if redis.pcall('hdel', KEYS[1], ARGV[1]) == 1 then
      local heard = redis.pcall(ARGV[2], ARGV[4], '0')
      if type(heard) == 'table' then heard = -1 end -- see wake
      return heard
    end
  elseif redis.pcall('hexists', KEYS[1], ARGV[1]) == 1 then
    redis.call('hdel', KEYS[1], '') -- needs no memory, and so opens the way for HSET
    redis.call('hset', KEYS[1], ARGV[1], ARGV[3])
    return 0
  end
end

-- prelude
local field, publish = ARGV[1], ARGV[2]
local ours, freed = true, {}
for i = 1, #KEYS do
  local count, channel = ARGV[1 + 2 * i], ARGV[2 + 2 * i]
  if not held(KEYS[i], field) then
    ours = false
  elseif count ~= '0' then
    redis.call('hdel', KEYS[i], '') -- needs no memory, and so opens the way for HSET
    redis.call('hset', KEYS[i], field, count)
  else
    redis.call('hdel', KEYS[i], field)
    if channel ~= '' then freed[#freed + 1] = channel end
  end
end
local heard
for _, channel in ipairs(freed) do
  local by = wake(publish, channel)
  if not heard or by < heard then heard = by end
end
if ours then return heard or 0 end
return {0, heard or 0}
