<?php
/*
 * Of a copy of a site: what it would mail is kept in private/mail of the site, and nothing leaves.
 *
 * PHP runs this file before any other of the site (auto_prepend_file), so that WordPress, which defines wp_mail() unless
 * there is one, takes this one; and as the program that mail() hands a message to (sendmail_path). No file of the site is
 * changed by it, and none has to be taken out when the copy becomes the site.
 */

const SVC_MOST_MAILS = 500;

function svc_keep_mail(string $message): bool
{
    $folder = rtrim((string) getenv('HOME'), '/') . '/private/mail';
    if (!is_dir($folder) && !@mkdir($folder, 0700, true)) {
        return false;
    }
    $name = sprintf('%s/%s-%s', $folder, gmdate('Ymd\THis'), bin2hex(random_bytes(6)));
    if (@file_put_contents("$name.part", $message) === false || !@rename("$name.part", "$name.eml")) {
        return false;
    }
    $kept = glob("$folder/*.eml") ?: [];
    foreach (array_slice($kept, 0, max(0, count($kept) - SVC_MOST_MAILS)) as $oldest) {
        @unlink($oldest);
    }
    return true;
}

if (PHP_SAPI === 'cli' && realpath((string) ($_SERVER['SCRIPT_FILENAME'] ?? '')) === __FILE__) {
    exit(svc_keep_mail((string) stream_get_contents(STDIN)) ? 0 : 75);
}

function wp_mail($to, $subject, $message, $headers = '', $attachments = [])
{
    $mail = apply_filters('wp_mail', compact('to', 'subject', 'message', 'headers', 'attachments'));
    $line = static fn ($text): string => str_replace(["\r", "\n"], ' ', is_array($text) ? implode(', ', $text) : (string) $text);
    $told = [
        'Date: ' . gmdate('D, d M Y H:i:s') . ' +0000',
        'To: ' . $line($mail['to']),
        'Subject: ' . $line($mail['subject']),
    ];
    $given = is_array($mail['headers']) ? $mail['headers'] : preg_split('/\r?\n/', (string) $mail['headers']);
    foreach (array_filter($given) as $name => $value) {
        $told[] = is_string($name) ? $line($name) . ': ' . $line($value) : $line($value);
    }
    foreach ((array) $mail['attachments'] as $file) {
        if ($file !== '') {
            $told[] = 'X-Attachment: ' . $line(basename((string) $file));
        }
    }
    return svc_keep_mail(implode("\n", $told) . "\n\n" . $mail['message'] . "\n");
}
