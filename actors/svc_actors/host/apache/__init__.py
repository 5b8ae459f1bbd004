"""Files of Apache, as sites of other hosts have them: what an .htaccess file says, and whose passwords are in a file.

The standard library alone: the confined process that reads an archive reads them too (`confined.survey`).
"""
