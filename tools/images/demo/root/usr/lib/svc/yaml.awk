# Reads YAML as cloud-config and network-config use it, JSON included, and prints a line for every scalar:
#     users/0/name<TAB>root
# Inside a value, backslash, newline and tab are written \\, \n and \t (read them back with printf %b). An empty map or list
# prints {} or []. Understood: block and flow maps and lists, plain, single- and double-quoted scalars over several lines,
# | and > blocks with - and +, comments, one document. Anchors, aliases and tags are refused: the exit code is 1 and the
# reason, with its line, is on standard error.

{ sub(/\r$/, ""); line[NR] = $0 }

END {
	at = 1
	blank()
	if (at <= NR && line[at] ~ /^(---|%)/) {
		while (at <= NR && line[at] !~ /^---/) at++
		sub(/^---/, "   ", line[at])
		blank()
	}
	if (at <= NR) {
		block(indent(at), "")
		blank()
		if (at <= NR && line[at] !~ /^(---|\.\.\.)/) fail("this is outside the structure above it")
	}
}

function fail(why) {
	if (failed) exit 1
	failed = 1
	print "line " at ": " why > "/dev/stderr"
	exit 1
}

function emit(path, value) {
	gsub(/\\/, "\\\\", value)
	gsub(/\n/, "\\n", value)
	gsub(/\t/, "\\t", value)
	print path "\t" value
}

function under(path, key) { return path == "" ? key : path "/" key }

function indent(number,    text) {
	text = line[number]
	match(text, /^ */)
	if (substr(text, RLENGTH + 1, 1) == "\t") fail("a tab may not indent")
	return RLENGTH
}

# To the next line that says something.
function blank() { while (at <= NR && line[at] ~ /^[ \t]*(#.*)?$/) at++ }

function ended() { return at > NR || line[at] ~ /^(---|\.\.\.)( |$)/ }

function block(depth, path,    text) {
	text = substr(line[at], depth + 1)
	if (text ~ /^-( |$)/) list(depth, path)
	else if (text ~ /^["'{[]/ && !key_length(text)) value(text, path, depth - 1)
	else if (key_length(text)) map(depth, path)
	else value(text, path, depth - 1)
}

function list(depth, path,    count, text, inner) {
	count = 0
	while (!ended() && indent(at) == depth && substr(line[at], depth + 1) ~ /^-( |$)/) {
		text = substr(line[at], depth + 2)
		if (text ~ /^[ ]*(#.*)?$/) {
			at++
			child(depth, under(path, count++), 0)
			continue
		}
		match(text, /^ */)
		inner = depth + 1 + RLENGTH
		text = substr(text, RLENGTH + 1)
		line[at] = sprintf("%" inner "s", "") text
		if (text ~ /^-( |$)/ || key_length(text)) block(inner, under(path, count++))
		else value(text, under(path, count++), depth)
		blank()
	}
	if (!ended() && indent(at) > depth) fail("deeper than the list it stands in")
}

function map(depth, path,    text, length_, key, rest) {
	while (!ended() && indent(at) == depth) {
		text = substr(line[at], depth + 1)
		if (text ~ /^-( |$)/) return
		length_ = key_length(text)
		if (!length_) fail("neither `key: value` nor a list item")
		key = plain_key(substr(text, 1, length_))
		rest = substr(text, length_ + 2)
		sub(/^[ \t]+/, "", rest)
		if (rest ~ /^(#.*)?$/) {
			at++
			child(depth, under(path, key), 1)
		} else value(rest, under(path, key), depth)
		blank()
	}
	if (!ended() && indent(at) > depth) fail("deeper than the map it stands in")
}

# What follows an empty `key:` or `-`: a deeper block, for a key also a list at the same depth, or nothing.
function child(depth, path, of_key,    next_) {
	blank()
	if (ended()) { emit(path, ""); return }
	next_ = indent(at)
	if (next_ > depth || (of_key && next_ == depth && substr(line[at], next_ + 1) ~ /^-( |$)/)) block(next_, path)
	else emit(path, "")
}

# The length of the key in `key: ...`, 0 when the text is no such thing.
function key_length(text) {
	if (text ~ /^"/) return match(text, /^"[^"\\]*":( |$)/) ? index(substr(text, 2), "\"") + 1 : 0
	if (text ~ /^'/) return match(text, /^'[^']*':( |$)/) ? index(substr(text, 2), "'") + 1 : 0
	if (text ~ /^[[{#&*!|>%@`]/) return 0
	if (match(text, /:([ \t]|$)/) && index(substr(text, 1, RSTART), " #") == 0) return RSTART - 1
	return 0
}

function plain_key(key) {
	if (key ~ /^["']/) return substr(key, 2, length(key) - 2)
	sub(/[ ]+$/, "", key)
	return key
}

function value(text, path, depth,    first, got) {
	first = substr(text, 1, 1)
	if (first ~ /[&*!]/) fail("anchors, aliases and tags are not read")
	if (first == "|" || first == ">") { scalar_block(text, path, depth); return }
	if (first ~ /["'{[]/) {
		rest_of_document(text)
		if (first ~ /["']/) emit(path, quoted())
		else flow(path)
		close_flow()
		return
	}
	sub(/[ \t]+#.*$/, "", text)
	sub(/[ \t]+$/, "", text)
	got = text
	at++
	while (!ended() && line[at] !~ /^[ \t]*(#.*)?$/ && indent(at) > depth) {
		text = substr(line[at], indent(at) + 1)
		if (key_length(text)) fail("a key inside the text above it; quote the text")
		sub(/[ \t]+#.*$/, "", text)
		sub(/[ \t]+$/, "", text)
		got = got " " text
		at++
	}
	if (got == "null" || got == "~") got = ""
	emit(path, got)
}

function scalar_block(text, path, depth,    folded, keep, strip, base, got, one, pending, more) {
	folded = text ~ /^>/
	keep = text ~ /^[|>][0-9]?\+/
	strip = text ~ /^[|>][0-9]?-/
	if (text ~ /[1-9]/ && text !~ /#/) fail("an indentation indicator is not read")
	base = -1
	pending = 0
	for (at++; at <= NR; at++) {
		one = line[at]
		if (one ~ /^ *$/ && (base < 0 || length(one) <= base)) { pending++; continue }
		if (indent_of(one) <= depth) break
		if (base < 0) base = indent_of(one)
		if (indent_of(one) < base) fail("less deep than the block it stands in")
		one = substr(one, base + 1)
		if (!more) { while (pending-- > 0) got = got "\n"; got = got one }
		else if (folded && !pending && one !~ /^ /) got = got " " one
		else {
			if (!folded || one ~ /^ /) got = got "\n"
			while (pending-- > 0) got = got "\n"
			got = got one
		}
		pending = 0
		more = 1
	}
	if (more && !strip) got = got "\n"
	if (keep) while (pending-- > 0) got = got "\n"
	emit(path, got)
}

function indent_of(text) { match(text, /^ */); return RLENGTH }

# The rest of the document as one string, `text` first: what stands in brackets or quotes may run over lines.
function rest_of_document(text,    number) {
	buffer = text
	for (number = at + 1; number <= NR; number++) buffer = buffer "\n" line[number]
	position = 1
}

# Back to lines: the cursor goes past what was read, and nothing but a comment may stand behind it.
function close_flow(    behind) {
	behind = substr(buffer, position)
	if (!match(behind, /^[ \t]*(#[^\n]*)?(\n|$)/)) fail("text behind a closed quote or bracket")
	at = at + gsub(/\n/, "\n", buffer) - gsub(/\n/, "\n", behind) + 1
}

function skip(    char) {
	while ((char = substr(buffer, position, 1)) != "") {
		if (char == "#") while ((char = substr(buffer, position, 1)) != "" && char != "\n") position++
		else if (char ~ /[ \t\n]/) position++
		else return char
	}
	fail("a bracket is not closed")
}

function flow(path,    char, count, key) {
	char = skip()
	if (char == "[") {
		position++
		count = 0
		while (skip() != "]") {
			flow(under(path, count++))
			separator("]")
		}
		position++
		if (!count) emit(path, "[]")
	} else if (char == "{") {
		position++
		count = 0
		while ((char = skip()) != "}") {
			key = char ~ /["']/ ? quoted() : word(1)
			count++
			if (skip() == ":") {
				position++
				if (skip() ~ /[,}]/) emit(under(path, key), "")
				else flow(under(path, key))
			} else emit(under(path, key), "")
			separator("}")
		}
		position++
		if (!count) emit(path, "{}")
	} else if (char ~ /["']/) emit(path, quoted())
	else if (char ~ /[&*!]/) fail("anchors, aliases and tags are not read")
	else {
		key = word(0)
		emit(path, key == "null" || key == "~" ? "" : key)
	}
}

function separator(closing,    char) {
	char = skip()
	if (char == ",") position++
	else if (char != closing) fail("a comma or " closing " is missing")
}

# A plain scalar inside brackets, folded where it runs over lines; as a key it is one line and ends at a colon.
function word(is_key,    char, got, behind, breaks) {
	got = ""
	while ((char = substr(buffer, position, 1)) != "" && char !~ /[],[{}]/) {
		if (char == ":" && (is_key || substr(buffer, position + 1, 1) ~ /[ \n]/)) break
		if (char == "#" && substr(buffer, position - 1, 1) == " ") break
		if (char == "\n") {
			breaks = 0
			for (behind = position; (char = substr(buffer, behind, 1)) ~ /^[ \t\n]$/; behind++) if (char == "\n") breaks++
			if (is_key || char == "#") break
			sub(/[ \t]+$/, "", got)
			if (breaks == 1) got = got " "
			while (--breaks > 0) got = got "\n"
			position = behind
			continue
		}
		got = got char
		position++
	}
	sub(/[ \t\n]+$/, "", got)
	if (got == "") fail("a value is missing")
	return got
}

function quoted(    quote, char, got, folded) {
	quote = substr(buffer, position++, 1)
	got = ""
	while ((char = substr(buffer, position, 1)) != "") {
		position++
		if (char == quote) {
			if (quote == "'" && substr(buffer, position, 1) == "'") { got = got "'"; position++; continue }
			return got
		}
		if (char == "\n") {
			sub(/[ \t]+$/, "", got)
			folded = 0
			while ((char = substr(buffer, position, 1)) ~ /[ \t\n]/ && char != "") { if (char == "\n") folded++; position++ }
			if (!folded) got = got " "
			while (folded-- > 0) got = got "\n"
		} else if (char == "\\" && quote == "\"") got = got escape()
		else got = got char
	}
	fail("a quote is not closed")
}

function escape(    char, code) {
	char = substr(buffer, position++, 1)
	if (char == "n") return "\n"
	if (char == "t") return "\t"
	if (char == "r") return "\r"
	if (char == "0") fail("a NUL character is not read")
	if (char == "\n") { while (substr(buffer, position, 1) ~ /^[ \t]$/) position++; return "" }
	if (char == "x" || char == "u") {
		code = number(substr(buffer, position, char == "x" ? 2 : 4))
		position += char == "x" ? 2 : 4
		return utf8(code)
	}
	if (char ~ /[ "\\\/]/) return char
	fail("unknown escape \\" char)
}

function number(digits,    position_, got) {
	got = 0
	for (position_ = 1; position_ <= length(digits); position_++)
		got = got * 16 + index("0123456789abcdef", tolower(substr(digits, position_, 1))) - 1
	return got
}

function utf8(code) {
	if (code < 128) return sprintf("%c", code)
	if (code < 2048) return sprintf("%c%c", 192 + int(code / 64), 128 + code % 64)
	return sprintf("%c%c%c", 224 + int(code / 4096), 128 + int(code / 64) % 64, 128 + code % 64)
}
