-- Returns which server runs this script.
--
-- KEYS  a lock key: its node is asked
--
-- Replies
--   the run id of the server; '' if it is not available, as when the user may not use INFO
local info = redis.pcall('info', 'server')
if type(info) ~= 'string' then return '' end
return string.match(info, 'run_id:(%w+)') or ''
