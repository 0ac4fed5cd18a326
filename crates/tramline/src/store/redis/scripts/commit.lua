-- Writes a step, if all that it has read is still so. Everything is checked before the first write, so a step happens or it does not.
-- KEYS[1]: who has the turn, if somebody was overtaken too often. KEYS[2]: a hash that is always there. ARGV: the name of the step;
-- 'cluster' in a Cluster; 'full' if it may be done on a server that is full; the number of its reads; for each read the number of its
-- words, the words and what its reply is known by (of `HMGET`: each field); then for each write the number of its words and the words.
-- Gives 'changed' if a read gives something else by now, 'wait' if it is somebody else's turn, else the time (seconds, microseconds).
local function sign(reply)
    if not reply then return '-' end
    if type(reply) == 'number' then return ':' .. reply end
    if type(reply) == 'string' then return #reply > 100 and redis.sha1hex(reply) or '=' .. reply end
    return #reply > 0 and redis.sha1hex(cmsgpack.pack(reply)) or '0'
end

local turn = redis.call('GET', KEYS[1])
if turn and turn ~= ARGV[1] then return 'wait' end

local at = 5
for _ = 1, tonumber(ARGV[4]) do
    local words = tonumber(ARGV[at])
    local reply = redis.call(unpack(ARGV, at + 1, at + words))
    local signs = at + words
    if ARGV[at + 1] == 'HMGET' then
        for i = 1, words - 2 do
            if sign(reply[i]) ~= ARGV[signs + i] then return 'changed' end
        end
        at = signs + words - 1
    else
        if sign(reply) ~= ARGV[signs + 1] then return 'changed' end
        at = signs + 2
    end
end

-- While a slot moves to another node, a key that is not here any more, or not yet, ends the script: it must not end half done.
local first = at
while ARGV[2] == 'cluster' and at <= #ARGV do
    redis.call('EXISTS', ARGV[at + 2])
    at = at + tonumber(ARGV[at]) + 1
end

-- A server that is full lets a script go on that has begun with a removal.
if ARGV[3] == 'full' then redis.call('HDEL', KEYS[2], 'nothing') end
at = first
while at <= #ARGV do
    local words = tonumber(ARGV[at])
    -- A hint may be lost, if this user may not give it: what was written before it stays written.
    local call = ARGV[at + 1] == 'PUBLISH' and redis.pcall or redis.call
    call(unpack(ARGV, at + 1, at + words))
    at = at + words + 1
end
if turn then redis.call('DEL', KEYS[1]) end
return redis.call('TIME')
