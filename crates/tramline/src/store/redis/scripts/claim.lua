-- Claims where there is no order and nothing special to look after, at one moment: due slices, by priority and time, the last one in part if it
-- holds too much. The same as `claim.rs` would take. Gives 'slow' when something else has to be decided, before anything is written.
-- KEYS[1]: who has the turn. ARGV: the beginning of all keys; the version of the catalogue; the subscription; the packed owner; the length of
-- the lease; how many events and bytes; the time, unless it is the server's; a number for a new slice; what a slice weighs; how many
-- bytes of chunks are given; the least epoch. Gives the time; the next time at which something is due, or nothing; chunk, number and row of each slice; chunk
-- numbers and chunks.
local prefix, id = ARGV[1], ARGV[3]
if redis.call('GET', KEYS[1]) then return 'slow' end
if redis.call('HGET', prefix .. 'meta', 'catalog') ~= ARGV[2] then return 'slow' end
if redis.call('EXISTS', prefix .. 'rules:' .. id) == 1 then return 'slow' end

local index = prefix .. 'i:' .. id
local byte, char, sub, floor = string.byte, string.char, string.sub, math.floor

-- A number in a tuple, and where it ends; see `tuple.rs`.
local function column(tuple, at)
    local last, value = at + byte(tuple, at) - 128, 0
    for i = at + 1, last do value = value * 256 + byte(tuple, i) end
    return value, last + 1
end

-- A number in a tuple in decimal digits. Above 2^53 Lua would lose its last bits: there it is converted in pieces of seven digits.
local function name(tuple, at, value)
    if value < 9007199254740992 then return string.format('%.0f', value) end
    local pieces, digits = {0, 0, 0}, ''
    for i = at + 1, at + byte(tuple, at) - 128 do
        local carry = byte(tuple, i)
        for piece = 1, 3 do
            carry = pieces[piece] * 256 + carry
            pieces[piece] = carry % 10000000
            carry = floor(carry / 10000000)
        end
    end
    for piece = 3, 1, -1 do digits = digits .. string.format('%07.0f', pieces[piece]) end
    return (string.gsub(digits, '^0+', ''))
end

local function tuple(value)
    local bytes = ''
    while value > 0 do
        bytes = char(value % 256) .. bytes
        value = floor(value / 256)
    end
    return char(128 + #bytes) .. bytes
end

-- A number in a row, and where it ends; see `pack.rs`. None of those that matter here is negative.
local function number(row, at)
    local value, factor = 0, 1
    while true do
        local part = byte(row, at)
        at = at + 1
        value = value + part % 128 * factor
        if part < 128 then return value / 2, at end
        factor = factor * 128
    end
end

local function skip(row, at, count)
    for _ = 1, count do
        while byte(row, at) >= 128 do at = at + 1 end
        at = at + 1
    end
    return at
end

local function pack(value)
    local rest, bytes = value * 2, ''
    while rest >= 128 do
        bytes = bytes .. char(rest % 128 + 128)
        rest = floor(rest / 128)
    end
    return bytes .. char(rest)
end

-- The lowest bits of a mask, and the others.
local function split(mask, count)
    local mine, rest = '', ''
    for i = 8, 1, -1 do
        local left, low, bit = byte(mask, i), 0, 1
        while bit <= 128 and count > 0 do
            if left % (bit * 2) >= bit then
                low, left, count = low + bit, left - bit, count - 1
            end
            bit = bit * 2
        end
        mine, rest = char(low) .. mine, char(left) .. rest
    end
    return mine, rest
end

local function head(state) return tuple(state) .. tuple(0) end

local function members(from, state, limit)
    return redis.call('ZRANGEBYLEX', index, from, '(' .. head(state) .. '\255', 'LIMIT', 0, limit)
end

-- The earliest time of a state: the first of each priority.
local function earliest(state)
    local first, from, start = nil, '[' .. head(state), #head(state) + 1
    while true do
        local member = members(from, state, 1)[1]
        if not member then return first end
        local rank, at = column(member, start)
        local pos = column(member, at)
        if not first or pos < first then first = pos end
        from = '[' .. head(state) .. tuple(rank + 1)
    end
end

local now = tonumber(ARGV[8])
if not now then
    local time = redis.call('TIME')
    now = time[1] * 1000 + floor(time[2] / 1000)
end
-- Leases that have ended, and suspects. What is claimed below ends later than now, so it is not looked for again.
local lapses = nil
for _, state in ipairs({1, 7, 2}) do
    local first = earliest(state)
    if first and first <= now then return 'slow' end
    if first and state ~= 2 then lapses = math.min(lapses or first, first) end
end
redis.call('EXISTS', prefix .. 'size')

local lease_end, events, bytes = now + tonumber(ARGV[5]), tonumber(ARGV[6]), tonumber(ARGV[7])
local from, start, page_size, most = '[' .. head(0), #head(0) + 1, 64, 100
local gone, new, sets, taken, chunks, next_due, passed = {}, {}, {}, {}, {}, nil, nil
local known, room, added = {}, tonumber(ARGV[11]), 0

-- Takes a slice, or what is wanted of it.
local function take(member, pos_at, pos_end)
    local chunk, at = column(member, pos_end)
    local slice, load = column(member, at)
    local count = column(member, load)
    local chunk_name, field = name(member, pos_end, chunk), string.format('%.0f', slice)
    local key = prefix .. 's:' .. chunk_name
    local row = redis.call('HGET', key, field)
    if not row then return false end
    local state_at = skip(row, 1, 1)
    local lane_at = skip(row, state_at, 1)
    local mask_at = skip(row, lane_at, 2)
    local rest_at = skip(row, mask_at + 8, 1)
    local epoch_at = skip(row, rest_at, 3)
    local epoch, owner_at = number(row, epoch_at)
    local flags_at = skip(row, owner_at, 1)
    local weight = number(row, skip(row, flags_at, 1))
    local mask = sub(row, mask_at, mask_at + 7)
    gone[#gone + 1] = member
    if count > events then
        local mine, rest = split(mask, events)
        local place = sub(member, 1, at - 1) .. tuple(tonumber(ARGV[9])) .. tuple(count - events)
        new[#new + 1], new[#new + 2] = '0', place
        sets[#sets + 1] = {key, ARGV[9], sub(row, 1, mask_at - 1) .. rest .. sub(row, mask_at + 8)}
        mask, count, added = mine, events, 1
    end
    local leased = sub(row, 1, state_at - 1) .. pack(1) .. sub(row, lane_at, mask_at - 1) .. mask .. pack(lease_end)
        .. sub(row, rest_at, epoch_at - 1) .. pack(math.max(epoch + 1, tonumber(ARGV[12]))) .. ARGV[4] .. sub(row, flags_at)
    local place = tuple(1) .. sub(member, #tuple(0) + 1, pos_at - 1) .. tuple(lease_end) .. sub(member, pos_end, load - 1) .. tuple(count)
    new[#new + 1], new[#new + 2] = '0', place
    sets[#sets + 1] = {key, field, leased}
    local at_taken = #taken
    taken[at_taken + 1], taken[at_taken + 2], taken[at_taken + 3] = chunk_name, field, leased
    events, bytes = events - count, bytes - weight
    if not known[chunk_name] and (#chunks == 0 or weight <= room) then
        known[chunk_name], room = true, room - weight
        local at_chunks = #chunks
        chunks[at_chunks + 1], chunks[at_chunks + 2] = chunk_name, redis.call('GET', prefix .. 'c:' .. chunk_name)
    end
    return true
end

local more = true
while more and events > 0 and bytes > 0 and #gone < most do
    local page = members(from, 0, page_size)
    more = #page == page_size
    for _, member in ipairs(page) do
        local rank, pos_at = column(member, start)
        local pos, pos_end = column(member, pos_at)
        if rank ~= passed and pos > now then
            -- The rest of this priority is for later.
            next_due, passed = math.min(next_due or pos, pos), rank
        elseif rank ~= passed then
            if events <= 0 or bytes <= 0 or #gone >= most then break end
            if not take(member, pos_at, pos_end) then return 'slow' end
        end
        from = rank == passed and '[' .. head(0) .. tuple(rank + 1) or '(' .. member
    end
end

if #gone > 0 then
    redis.call('ZREM', index, unpack(gone))
    redis.call('ZADD', index, unpack(new))
    for _, set in ipairs(sets) do redis.call('HSET', unpack(set)) end
    if added > 0 then redis.call('HINCRBY', prefix .. 'size', 'bytes', ARGV[10]) end
end
if events > 0 and bytes > 0 then
    if #gone > 0 then lapses = math.min(lapses or lease_end, lease_end) end
    if lapses then next_due = math.min(next_due or lapses, lapses) end
    if #gone >= most then next_due = now end
    return {string.format('%.0f', now), next_due and string.format('%.0f', next_due) or false, taken, chunks}
end
return {string.format('%.0f', now), false, taken, chunks}
