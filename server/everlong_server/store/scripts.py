"""Everything that must happen at once in Redis, as Lua. Each script checks before it writes.

The connection sends a script again whose answer was lost (`connection.connect`), so each may run twice: what it has done
the first time it tells the second time, too."""

from __future__ import annotations

from typing import Any

from redis.asyncio import RedisCluster
from redis.commands.core import AsyncScript
from redis.exceptions import ConnectionError as RedisConnectionError
from redis.exceptions import NoScriptError

from everlong_server.store.connection import Client
from everlong_server.store.keys import FENCE

# KEYS: document, documents, document_readings, reading, jobs, stored, queued, and the upload and its parts that it is
# made of, if it is
# ARGV: document id, created, reading id, number of document fields n, bytes, most bytes or '', most queued or '',
# n fields and values, then those of the reading
# Returns 1, 0 (there already), -1 (the upload is not pending), -1001 (too many bytes), -1002 (too many queued)
CREATE_DOCUMENT = """
if redis.call('EXISTS', KEYS[1]) == 1 then return 0 end
if ARGV[6] ~= '' and tonumber(redis.call('GET', KEYS[6]) or 0) + tonumber(ARGV[5]) > tonumber(ARGV[6]) then return -1001 end
if ARGV[7] ~= '' and redis.call('SCARD', KEYS[7]) >= tonumber(ARGV[7]) then return -1002 end
if KEYS[8] then
  if redis.call('HGET', KEYS[8], 'status') ~= 'pending' then return -1 end
  redis.call('HSET', KEYS[8], 'status', 'completed', 'file', ARGV[1])
  redis.call('DEL', KEYS[9])
end
redis.call('INCRBY', KEYS[6], ARGV[5])
redis.call('SADD', KEYS[7], ARGV[3])
local n = tonumber(ARGV[4])
redis.call('HSET', KEYS[1], unpack(ARGV, 8, 7 + n))
redis.call('ZADD', KEYS[2], ARGV[2], ARGV[1])
redis.call('SADD', KEYS[3], ARGV[3])
redis.call('HSET', KEYS[4], unpack(ARGV, 8 + n))
redis.call('XADD', KEYS[5], '*', 'reading', ARGV[3], 'tenant', redis.call('HGET', KEYS[4], 'tenant'))
return 1
"""

# KEYS: jobs. ARGV: group, prefix of replicas' keys. Forgets the takers that are dead and hold nothing
FORGET_TAKERS = """
for _, taker in ipairs(redis.call('XINFO', 'CONSUMERS', KEYS[1], ARGV[1])) do
  local facts = {}
  for i = 1, #taker, 2 do facts[taker[i]] = taker[i + 1] end
  if facts.pending == 0 and redis.call('EXISTS', ARGV[2] .. facts.name) == 0 then
    redis.call('XGROUP', 'DELCONSUMER', KEYS[1], ARGV[1], facts.name)
  end
end
"""

# KEYS: any of ours. Returns Redis's time of day, seconds and microseconds.
MOMENT = "return redis.call('TIME')"

# KEYS: reading, jobs, queued, then n pairs document, document_readings, then the parent reading and its children, if any
# ARGV: reading id, most queued or '', n, fields and values of the reading
# Returns 1 (created), 0 (there already), -k (the k-th document is gone), -1002 (too many queued)
ENSURE_READING = """
if redis.call('EXISTS', KEYS[1]) == 1 then return 0 end
local last = 3 + 2 * ARGV[3]
for i = 4, last, 2 do
  if redis.call('EXISTS', KEYS[i]) == 0 then return -(i - 2) / 2 end
end
if ARGV[2] ~= '' and redis.call('SCARD', KEYS[3]) >= tonumber(ARGV[2]) then return -1002 end
redis.call('SADD', KEYS[3], ARGV[1])
redis.call('HSET', KEYS[1], unpack(ARGV, 4))
for i = 4, last, 2 do redis.call('SADD', KEYS[i + 1], ARGV[1]) end
local parent = KEYS[last + 1] and redis.call('HGET', KEYS[last + 1], 'status')
if parent == 'queued' or parent == 'reading' then
  redis.call('SADD', KEYS[last + 2], ARGV[1])
else
  redis.call('XADD', KEYS[2], '*', 'reading', ARGV[1], 'tenant', redis.call('HGET', KEYS[1], 'tenant'))
end
return 1
"""

# Whoever claims says by what: the same again has the same token, and is counted once. The token stands beside it, since
# servers of before that claim leave no word.
_CLAIM = """
local function claim(what, fence, by)
  local last = redis.call('HMGET', what, 'claim', 'fence', 'attempts')
  if last[2] and last[1] == by .. ':' .. last[2] then return {last[2], last[3]} end -- sent again: its answer was lost
  local token = redis.call('INCR', fence)
  redis.call('HSET', what, 'fence', token, 'claim', by .. ':' .. token)
  return {token, redis.call('HINCRBY', what, 'attempts', 1)}
end
"""

# KEYS: reading, fence. ARGV: by what it is claimed
# Returns {token, attempts} of the one who may write now, or nothing if there is nothing to do.
CLAIM_READING = (
    _CLAIM
    + """
local status = redis.call('HGET', KEYS[1], 'status')
if not status or status == 'ready' or status == 'failed' then return nil end
redis.call('HSET', KEYS[1], 'status', 'reading')
return claim(KEYS[1], KEYS[2], ARGV[1])
"""
)

# KEYS: reading. ARGV: token. What its owner could not try does not count.
UNTRY_READING = "if redis.call('HGET', KEYS[1], 'fence') == ARGV[1] then redis.call('HSET', KEYS[1], 'attempts', 0) end"

# KEYS: reading, children, jobs, queued, tokens of the day
# ARGV: token, expected version, 1 if this is the end, tokens read or '' if they are not counted, nonce of the write, fields
# and values
# Returns the new version, 0 (the reading is gone), -1 (somebody else has it, or another write was quicker)
CHECKPOINT_READING = """
local now = redis.call('HMGET', KEYS[1], 'fence', 'version', 'write')
if not now[2] then return 0 end
if now[1] ~= ARGV[1] then return -1 end
if now[3] == ARGV[5] then return tonumber(now[2]) end -- sent again: its answer was lost
if now[2] ~= ARGV[2] then return -1 end
if ARGV[4] ~= '' then
  local more = tonumber(ARGV[4]) - tonumber(redis.call('HGET', KEYS[1], 'tokens') or 0)
  if more > 0 then
    redis.call('INCRBY', KEYS[5], more)
    redis.call('EXPIRE', KEYS[5], 172800)
  end
end
redis.call('HSET', KEYS[1], 'attempts', 0, 'write', ARGV[5], unpack(ARGV, 6))
if ARGV[3] == '1' then
  redis.call('SREM', KEYS[4], redis.call('HGET', KEYS[1], 'id'))
  local tenant = redis.call('HGET', KEYS[1], 'tenant')
  for _, child in ipairs(redis.call('SMEMBERS', KEYS[2])) do
    redis.call('XADD', KEYS[3], '*', 'reading', child, 'tenant', tenant)
  end
  redis.call('DEL', KEYS[2])
end
return redis.call('HINCRBY', KEYS[1], 'version', 1)
"""

# KEYS: jobs, turns. ARGV: group, replica id, how many of the entries are looked at
# Gives the taker the oldest waiting job of the tenant whose turn was longest ago. Returns {newest entry, entry, fields}, or
# {newest entry} if none waits. A tenant that is not in the entry is of a version before there were turns.
NEXT_JOB = """
local taken = {}
for _, held in ipairs(redis.call('XPENDING', KEYS[1], ARGV[1], '-', '+', ARGV[3])) do taken[held[1]] = true end
local turns, found, whose = {}, nil, nil
local from, looked = '-', 0
repeat
  local entries = redis.call('XRANGE', KEYS[1], from, '+', 'COUNT', 1000)
  for _, entry in ipairs(entries) do
    if not taken[entry[1]] then
      local tenant = entry[2][4] or ''
      turns[tenant] = turns[tenant] or tonumber(redis.call('HGET', KEYS[2], tenant) or 0)
      if not found or turns[tenant] < turns[whose] then found, whose = entry, tenant end
      if turns[whose] == 0 then break end
    end
  end
  looked = looked + #entries
  from = #entries > 0 and '(' .. entries[#entries][1]
until #entries < 1000 or looked >= tonumber(ARGV[3]) or (whose and turns[whose] == 0)
local newest = redis.call('XREVRANGE', KEYS[1], '+', '-', 'COUNT', 1)
newest = newest[1] and newest[1][1] or '0-0'
if not found then return {newest} end
redis.call('XCLAIM', KEYS[1], ARGV[1], ARGV[2], 0, found[1], 'FORCE', 'JUSTID')
redis.call('HSET', KEYS[2], whose, redis.call('HINCRBY', KEYS[2], 'turns:', 1))
redis.call('EXPIRE', KEYS[2], 86400)
return {newest, found[1], found[2]}
"""

# KEYS: jobs. ARGV: group, replica id, prefix of replicas' keys, the entries that the replica has in hand
# Gives the replica the oldest entry that was left behind: by a replica that is dead, or delivered to this one, which did not
# hear of it. Returns {entry, its owner so far, fields}, or nothing.
RECLAIM_JOB = """
local hands, lives = {}, {[ARGV[2]] = 0}
for i = 4, #ARGV do hands[ARGV[i]] = true end
local from, pending = '-', nil
repeat
  pending = redis.call('XPENDING', KEYS[1], ARGV[1], from, '+', 1000)
  for _, item in ipairs(pending) do
    local entry, owner = item[1], item[2]
    lives[owner] = lives[owner] or redis.call('EXISTS', ARGV[3] .. owner)
    if lives[owner] == 0 and not hands[entry] then
      local taken = redis.call('XCLAIM', KEYS[1], ARGV[1], ARGV[2], 0, entry)
      if taken[1] then return {entry, owner, taken[1][2]} end
      redis.call('XACK', KEYS[1], ARGV[1], entry) -- it was deleted, and nobody said that it was done
    end
    from = '(' .. entry
  end
until #pending < 1000
"""

# KEYS: jobs. ARGV: group, replica id, entry, another entry of the same job or '', fields and values or nothing
# Ends the entry if it is the replica's, and puts one with these fields behind all others. With another entry: only if that
# is in anybody's hands. Returns 1, or 0: it is not. Without the group, Redis has lost its data: nobody has anything.
END_JOB = """
local function owner(entry)
  local pending = redis.pcall('XPENDING', KEYS[1], ARGV[1], entry, entry, 1)
  return not pending.err and pending[1] and pending[1][2]
end
if ARGV[4] ~= '' and not owner(ARGV[4]) then return 0 end
if owner(ARGV[3]) ~= ARGV[2] then return 1 end -- sent again, or another has taken it over
redis.call('XACK', KEYS[1], ARGV[1], ARGV[3])
if redis.call('XDEL', KEYS[1], ARGV[3]) == 1 and #ARGV > 4 then redis.call('XADD', KEYS[1], '*', unpack(ARGV, 5)) end
return 1
"""

# KEYS: document, documents, document_readings, stored
# ARGV: document id, prefix of reading keys, of document keys, of the tenant's queues
# What the document's readings had learnt goes with them.
DELETE_DOCUMENT = """
local size = redis.call('HMGET', KEYS[1], 'bytes', 'text_offset')
if redis.call('DEL', KEYS[1]) == 0 then return end
redis.call('DECRBY', KEYS[4], size[1] + size[2])
redis.call('ZREM', KEYS[2], ARGV[1])
for _, id in ipairs(redis.call('SMEMBERS', KEYS[3])) do
  local documents, model = unpack(redis.call('HMGET', ARGV[2] .. id, 'documents', 'model'))
  if documents then
    redis.call('SREM', ARGV[4] .. model, id)
    for _, other in ipairs(cjson.decode(documents)) do redis.call('SREM', ARGV[3] .. other .. ':readings', id) end
  end
  redis.call('DEL', ARGV[2] .. id, ARGV[2] .. id .. ':children')
end
redis.call('DEL', KEYS[3])
"""

_FORK = """
local function fork(reading, session)
  local from = redis.call('HMGET', reading, 'status', 'state', 'open', 'position', 'state_bytes', 'state_digest')
  if from[1] == 'ready' then
    redis.call('HSET', session, 'state', from[2], 'open', from[3], 'position', from[4],
               'state_bytes', from[5], 'state_digest', from[6])
  end
end
"""

# KEYS: chat, then its documents. ARGV: milliseconds, fields and values
# Returns 1, or 0 if a document is gone: what it taught goes with it.
KEEP_CHAT = """
for i = 2, #KEYS do
  if redis.call('EXISTS', KEYS[i]) == 0 then return 0 end
end
redis.call('HSET', KEYS[1], unpack(ARGV, 2))
redis.call('PEXPIRE', KEYS[1], ARGV[1])
return 1
"""

# KEYS: upload, its parts. ARGV: part id, part, its bytes, most bytes of all, most parts.
# Returns 1, 0 (the upload is not pending), -1 (there is no room for it)
ADD_PART = """
if redis.call('HGET', KEYS[1], 'status') ~= 'pending' then return 0 end
if redis.call('HEXISTS', KEYS[2], ARGV[1]) == 1 then return 1 end -- sent again: its answer was lost
if redis.call('HLEN', KEYS[2]) >= tonumber(ARGV[5]) then return -1 end
if tonumber(redis.call('HGET', KEYS[1], 'received') or 0) + tonumber(ARGV[3]) > tonumber(ARGV[4]) then return -1 end
redis.call('HINCRBY', KEYS[1], 'received', ARGV[3])
redis.call('HSET', KEYS[2], ARGV[1], ARGV[2])
return 1
"""

# KEYS: upload, its parts. Returns 1, or 0: the upload is not pending.
CANCEL_UPLOAD = """
if redis.call('HGET', KEYS[1], 'status') ~= 'pending' then return 0 end
redis.call('HSET', KEYS[1], 'status', 'cancelled')
redis.call('DEL', KEYS[2])
return 1
"""

# KEYS: response, jobs. ARGV: response id, milliseconds, fields and values. Stores it and queues it at once.
QUEUE_RESPONSE = """
if redis.call('EXISTS', KEYS[1]) == 1 then return 0 end -- sent again: its answer was lost
redis.call('HSET', KEYS[1], unpack(ARGV, 3))
redis.call('PEXPIRE', KEYS[1], ARGV[2])
redis.call('XADD', KEYS[2], '*', 'response', ARGV[1], 'tenant', redis.call('HGET', KEYS[1], 'tenant'))
return 1
"""

# KEYS: response, fence. ARGV: by what it is claimed
# Returns {token, attempts} of the one who may write now, or nothing if it is over or gone.
CLAIM_RESPONSE = (
    _CLAIM
    + """
local status = redis.call('HGET', KEYS[1], 'status')
if status ~= 'queued' and status ~= 'in_progress' then return nil end
return claim(KEYS[1], KEYS[2], ARGV[1])
"""
)

# KEYS: response. ARGV: token, fields and values
# Returns 1, or 0: it was cancelled, deleted, or somebody else has it
WRITE_RESPONSE = """
local now = redis.call('HMGET', KEYS[1], 'status', 'fence')
if now[2] ~= ARGV[1] then return 0 end
if now[1] ~= 'queued' and now[1] ~= 'in_progress' then return 1 end -- sent again: its answer was lost
if #ARGV > 1 then redis.call('HSET', KEYS[1], unpack(ARGV, 2)) end
return 1
"""

# KEYS: response. ARGV: fields and values. Ends one that is still to be answered; nobody has it from then on.
END_RESPONSE = """
local status = redis.call('HGET', KEYS[1], 'status')
if status ~= 'queued' and status ~= 'in_progress' then return end
redis.call('HDEL', KEYS[1], 'fence')
redis.call('HSET', KEYS[1], unpack(ARGV))
"""

# KEYS: session, sessions, and the reading if there is one. ARGV: session id, created, most sessions or '', fields and values
# Returns 1, 0 (there already), -1001 (too many)
CREATE_SESSION = (
    _FORK
    + """
if redis.call('EXISTS', KEYS[1]) == 1 then return 0 end
if ARGV[3] ~= '' and redis.call('ZCARD', KEYS[2]) >= tonumber(ARGV[3]) then return -1001 end
redis.call('HSET', KEYS[1], unpack(ARGV, 4))
redis.call('ZADD', KEYS[2], ARGV[2], ARGV[1])
if KEYS[3] then fork(KEYS[3], KEYS[1]) end
return 1
"""
)

# KEYS: session, reading. Gives a session the state of its documents, once they are read.
START_SESSION = (
    _FORK
    + """
if redis.call('EXISTS', KEYS[1]) == 1 and redis.call('HEXISTS', KEYS[1], 'state') == 0 then fork(KEYS[2], KEYS[1]) end
return 1
"""
)

# KEYS: session, its messages, new session, its messages, sessions. ARGV: new id, created, most sessions or ''
# Returns 1, 0 (there is no such session), -1001 (too many)
FORK_SESSION = """
if redis.call('EXISTS', KEYS[1]) == 0 then return 0 end
if redis.call('EXISTS', KEYS[3]) == 1 then return 1 end
if ARGV[3] ~= '' and redis.call('ZCARD', KEYS[5]) >= tonumber(ARGV[3]) then return -1001 end
redis.call('COPY', KEYS[1], KEYS[3])
redis.call('COPY', KEYS[2], KEYS[4])
redis.call('HSET', KEYS[3], 'id', ARGV[1], 'created_at', ARGV[2], 'version', 0)
redis.call('ZADD', KEYS[5], ARGV[2], ARGV[1])
return 1
"""

# KEYS: session. ARGV: number of fields to take away n, n fields, fields and values to set. Returns 1, or 0 (no such session)
UPDATE_SESSION = """
if redis.call('EXISTS', KEYS[1]) == 0 then return 0 end
local n = tonumber(ARGV[1])
if n > 0 then redis.call('HDEL', KEYS[1], unpack(ARGV, 2, 1 + n)) end
if #ARGV > 1 + n then redis.call('HSET', KEYS[1], unpack(ARGV, 2 + n)) end
return 1
"""

# KEYS: session, messages, lease, sessions. ARGV: session id
DELETE_SESSION = """
redis.call('DEL', KEYS[1], KEYS[2], KEYS[3])
redis.call('ZREM', KEYS[4], ARGV[1])
"""

# KEYS: lease, fence. ARGV: replica id, nonce, milliseconds, prefix of replica keys
# Returns the lease's value `replica|nonce|token`, or nothing if a living replica has it.
ACQUIRE_LEASE = """
local holder = redis.call('GET', KEYS[1])
if holder then
  local replica, nonce = string.match(holder, '^([^|]*)|([^|]*)|')
  if nonce == ARGV[2] then return holder end -- sent again: its answer was lost
  if redis.call('EXISTS', ARGV[4] .. replica) == 1 then return nil end
end
local value = ARGV[1] .. '|' .. ARGV[2] .. '|' .. redis.call('INCR', KEYS[2])
redis.call('SET', KEYS[1], value, 'PX', ARGV[3])
return value
"""

# KEYS: lease. ARGV: nonce. Gives back a lease whose value nobody was told.
DROP_LEASE = """
local holder = redis.call('GET', KEYS[1])
if holder and string.match(holder, '^[^|]*|([^|]*)|') == ARGV[1] then redis.call('DEL', KEYS[1]) end
"""

# KEYS: lease. ARGV: value, milliseconds (0: give it back). Returns 1 if the lease was ours.
RENEW_LEASE = """
if redis.call('GET', KEYS[1]) ~= ARGV[1] then return 0 end
if ARGV[2] == '0' then redis.call('DEL', KEYS[1]) else redis.call('PEXPIRE', KEYS[1], ARGV[2]) end
return 1
"""

# KEYS: session, lease, messages. ARGV: lease value, expected version, number of messages n, n messages, title if it has
# none, fields and values
# Returns the new version, 0 (the session is gone), -1 (the lease is lost), -2 (another version)
COMMIT_SESSION = """
local now = redis.call('HMGET', KEYS[1], 'version', 'writer')
if not now[1] then return 0 end
if now[2] == ARGV[1] then return tonumber(now[1]) end -- sent again: its answer was lost
if redis.call('GET', KEYS[2]) ~= ARGV[1] then return -1 end
if now[1] ~= ARGV[2] then return -2 end
local n = tonumber(ARGV[3])
if n > 0 then redis.call('RPUSH', KEYS[3], unpack(ARGV, 4, 3 + n)) end
if ARGV[4 + n] ~= '' then redis.call('HSETNX', KEYS[1], 'title', ARGV[4 + n]) end
redis.call('HSET', KEYS[1], 'writer', ARGV[1], unpack(ARGV, 5 + n))
redis.call('HINCRBY', KEYS[1], 'messages', n)
return redis.call('HINCRBY', KEYS[1], 'version', 1)
"""


# KEYS: requests. ARGV: most requests a minute
# A bucket that fills evenly, kept as the one moment when it is full again. Milliseconds.
# Returns {1 or 0, requests left, milliseconds to wait, milliseconds until none counts any more}
COUNT_REQUEST = """
local time, limit = redis.call('TIME'), tonumber(ARGV[1])
local now, each = time[1] * 1000 + time[2] / 1000, 60000 / limit
local full = math.max(tonumber(redis.call('GET', KEYS[1]) or 0), now)
local over = full + each - now - 60000
if over > each / 1000 then return {0, 0, math.ceil(over), math.ceil(full - now)} end
redis.call('SET', KEYS[1], string.format('%.3f', full + each), 'PX', math.ceil(full + each - now))
return {1, math.floor(-over / each + 0.001), 0, math.ceil(full + each - now)}
"""

# KEYS: stored, held, sizes. ARGV: id or '', bytes or '' (none any more), milliseconds, most bytes or ''
# What is held by that id is so many bytes from now on; what has ended is not counted any more.
# Returns 1, or -1001 (too many bytes: all is as it was)
HOLD = """
local time = redis.call('TIME')
local now = time[1] * 1000 + math.floor(time[2] / 1000)
local function count(id, bytes)
  redis.call('INCRBY', KEYS[1], bytes - (redis.call('HGET', KEYS[3], id) or 0))
  if bytes > 0 then
    redis.call('HSET', KEYS[3], id, bytes)
    redis.call('ZADD', KEYS[2], now + ARGV[3], id)
  else
    redis.call('HDEL', KEYS[3], id)
    redis.call('ZREM', KEYS[2], id)
  end
end
for _, id in ipairs(redis.call('ZRANGEBYSCORE', KEYS[2], '-inf', now, 'LIMIT', 0, 1000)) do count(id, 0) end
if ARGV[1] == '' then return 1 end
local bytes, before = tonumber(ARGV[2]), tonumber(redis.call('HGET', KEYS[3], ARGV[1]) or 0)
if ARGV[4] ~= '' and bytes > before then
  if tonumber(redis.call('GET', KEYS[1]) or 0) - before + bytes > tonumber(ARGV[4]) then return -1001 end
end
if bytes > 0 or before > 0 then count(ARGV[1], bytes) end
return 1
"""

# KEYS: held. ARGV: id, milliseconds. What is held by that id is so for longer.
HOLD_ON = """
local time = redis.call('TIME')
redis.call('ZADD', KEYS[1], 'XX', time[1] * 1000 + math.floor(time[2] / 1000) + ARGV[2], ARGV[1])
"""

# KEYS: streams. ARGV: member `replica|nonce`, most streams, prefix of replica keys. Returns 1, or 0 (too many).
OPEN_STREAM = """
for _, member in ipairs(redis.call('SMEMBERS', KEYS[1])) do
  if redis.call('EXISTS', ARGV[3] .. string.match(member, '^([^|]*)|')) == 0 then redis.call('SREM', KEYS[1], member) end
end
if redis.call('SISMEMBER', KEYS[1], ARGV[1]) == 1 then return 1 end -- sent again: its answer was lost
if redis.call('SCARD', KEYS[1]) >= tonumber(ARGV[2]) then return 0 end
return redis.call('SADD', KEYS[1], ARGV[1])
"""


# KEYS: attempt. ARGV: owner `replica|nonce`, id, milliseconds, prefix of replica keys
# Returns nothing (its owner lives and is at it), or {first, again or done; id; fingerprint; answer}
BEGIN_ATTEMPT = """
local owner, id, fingerprint, answer = unpack(redis.call('HMGET', KEYS[1], 'owner', 'id', 'fingerprint', 'answer'))
if not id then
  redis.call('HSET', KEYS[1], 'owner', ARGV[1], 'id', ARGV[2])
  redis.call('PEXPIRE', KEYS[1], ARGV[3])
  return {'first', ARGV[2], '', ''}
end
if answer then return {'done', id, fingerprint or '', answer} end
if owner ~= '' and owner ~= ARGV[1] then
  if redis.call('EXISTS', ARGV[4] .. string.match(owner, '^([^|]*)|')) == 1 then return nil end
end
redis.call('HSET', KEYS[1], 'owner', ARGV[1])
return {'again', id, fingerprint or '', ''}
"""

# KEYS: attempt. ARGV: owner, field or 'forget', value, milliseconds. Returns 1, or 0 if it is no longer the owner's.
END_ATTEMPT = """
if redis.call('HGET', KEYS[1], 'owner') ~= ARGV[1] then return 0 end
if ARGV[2] == 'forget' then return redis.call('DEL', KEYS[1]) end
redis.call('HSET', KEYS[1], ARGV[2], ARGV[3])
redis.call('PEXPIRE', KEYS[1], ARGV[4])
return 1
"""


# KEYS: what is stored, and its index, if it has one. ARGV: milliseconds that it lives or '', its member and its place in the
# index or '' and '', fields and values
STORE = """
redis.call('HSET', KEYS[1], unpack(ARGV, 4))
if ARGV[1] ~= '' then redis.call('PEXPIRE', KEYS[1], ARGV[1]) end
if KEYS[2] then redis.call('ZADD', KEYS[2], ARGV[3], ARGV[2]) end
return 1
"""

# KEYS: API key. ARGV: time. Returns the time at which it was revoked.
REVOKE = """
redis.call('HSETNX', KEYS[1], 'revoked_at', ARGV[1])
return redis.call('HGET', KEYS[1], 'revoked_at')
"""

_COPY_MS = 2000


class Scripts:
    """The scripts above, registered with one client; called as `await scripts.run(TEXT, keys, args)`.

    What a script has written has as many copies as the client asks for (`connect`) before it is answered; if there are
    not enough, it may have been done, and the caller is told that Redis is away.
    """

    def __init__(self, redis: Client) -> None:
        self._redis = redis
        self._scripts: dict[str, AsyncScript] = {}

    async def run(self, text: str, keys: list[str], args: list[Any]) -> Any:
        """The script's result."""
        if text not in self._scripts:
            self._scripts[text] = self._redis.register_script(text)
        script = self._scripts[text]
        if not self._redis.copies:
            return await script(keys=keys, args=args)
        try:
            return await self._copied(script, keys, args)
        except NoScriptError:
            await self._redis.script_load(text)
            return await self._copied(script, keys, args)

    async def _copied(self, script: AsyncScript, keys: list[str], args: list[Any]) -> Any:
        """In one go on one connection: the copies are counted by the server that has run the script."""
        copies, where = self._redis.copies, {}
        if isinstance(self._redis, RedisCluster):
            await self._redis.initialize()
            where = {"target_nodes": self._redis.get_node_from_key(FENCE)}
        async with self._redis.pipeline(transaction=False) as pipe:
            pipe.execute_command("EVALSHA", script.sha, len(keys), *keys, *args, **where)
            # A write, so that also what was written by a sending whose answer got lost is waited for.
            pipe.execute_command("INCRBY", FENCE, 0, **where)
            pipe.execute_command("WAIT", copies, _COPY_MS, **where)
            done, *rest = await pipe.execute(raise_on_error=False)
        for result in (done, *rest):
            if isinstance(result, Exception):
                raise result
        if rest[1] < copies:
            raise RedisConnectionError(f"{rest[1]} replicas of Redis have the write, and {copies} should")
        return done


def flat(fields: dict[str, Any]) -> list[Any]:
    """Fields and values, one after the other."""
    return [part for pair in fields.items() for part in pair]
