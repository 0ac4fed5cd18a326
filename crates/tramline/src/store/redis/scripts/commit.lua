-- Writes a step, if all that it has read is still so. Everything is checked before the first write, so a step happens or it does not.
-- KEYS[1]: who has the turn, if somebody was overtaken too often. ARGV: the name of the step; 'cluster' in a Cluster; the number of
-- its reads; for each read the number of its words, the words and the digest of its reply; then for each write the number of its
-- words and the words. Gives 'done', 'changed' if a read gives something else by now, 'wait' if it is somebody else's turn.
local function digest(reply)
    if type(reply) == 'string' then return redis.sha1hex(reply) end
    return redis.sha1hex(cmsgpack.pack(reply))
end

local turn = redis.call('GET', KEYS[1])
if turn and turn ~= ARGV[1] then return 'wait' end

local at = 4
for _ = 1, tonumber(ARGV[3]) do
    local words = tonumber(ARGV[at])
    local reply = redis.call(unpack(ARGV, at + 1, at + words))
    if digest(reply) ~= ARGV[at + words + 1] then return 'changed' end
    at = at + words + 2
end

-- While a slot moves to another node, a key that is not here any more, or not yet, ends the script: it must not end half done.
local first = at
while ARGV[2] == 'cluster' and at <= #ARGV do
    redis.call('EXISTS', ARGV[at + 2])
    at = at + tonumber(ARGV[at]) + 1
end

at = first
while at <= #ARGV do
    local words = tonumber(ARGV[at])
    redis.call(unpack(ARGV, at + 1, at + words))
    at = at + words + 1
end
if turn then redis.call('DEL', KEYS[1]) end
return 'done'
