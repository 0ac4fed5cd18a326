-- Reads at one moment. ARGV: for each read the number of its words, then the words of a Redis command that changes nothing.
-- Gives the time (seconds, microseconds), and for each read its reply and the digest by which `commit.lua` knows whether it still holds.
local function digest(reply)
    if type(reply) == 'string' then return redis.sha1hex(reply) end
    return redis.sha1hex(cmsgpack.pack(reply))
end

local time = redis.call('TIME')
local answer = {time[1], time[2]}
local at = 1
while at <= #ARGV do
    local words = tonumber(ARGV[at])
    local reply = redis.call(unpack(ARGV, at + 1, at + words))
    answer[#answer + 1] = reply
    answer[#answer + 1] = digest(reply)
    at = at + words + 1
end
return answer
